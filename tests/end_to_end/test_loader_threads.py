"""A command exits with its own status while a thread of fairseq still reads batches ahead.

Without the change ``loader-threads``, the interpreter aborts with status 134 and the message "terminate
called without an active exception".
"""

import os
import subprocess
import sys
import time

import pytest
from commands import plugin
from forked import ROOT, split
from reversal import AUTHORS_COMMAND

from fairseq.data import iterators
from luna_fairseq.engine.loader_threads import end_loader_threads

# Run a fairseq command with a collater that spends its time in torch's C++ code. The thread that reads ahead
# is then in the middle of a batch when the command ends after the first batch.
SLOW_COLLATER = """
import importlib, os, signal, sys, time
import torch
from fairseq.data import LanguagePairDataset
from fairseq.tasks.translation import TranslationTask

command, end, *words = sys.argv[1:]
numbers, collate = torch.empty(1 << 20), LanguagePairDataset.collater

def collate_slowly(self, *args, **kwargs):
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        numbers.fill_(1.0)
    return collate(self, *args, **kwargs)

def end_after(step):
    def first_step(*args, **kwargs):
        result = step(*args, **kwargs)
        if end == "error":
            raise KeyError("not in the dictionary")
        if end == "sigterm":
            os.kill(os.getpid(), signal.SIGTERM)
        return result
    return first_step

LanguagePairDataset.collater = collate_slowly
for name in ("train_step", "valid_step", "inference_step"):
    setattr(TranslationTask, name, end_after(getattr(TranslationTask, name)))
sys.argv = [command, *words]
importlib.import_module(f"fairseq_cli.{command}").cli_main()
"""
TRAIN = f"{AUTHORS_COMMAND} --max-update 1 --disable-validation --num-workers 0"
READ = "--path {checkpoint} --batch-size 2 --num-workers 0 --required-batch-size-multiple 1"


@pytest.mark.parametrize(
    "command, end, status",
    [
        ("train", "done", 0),
        pytest.param("train", "error", 1, marks=pytest.mark.slow),
        pytest.param("train", "sigterm", 143, marks=pytest.mark.slow),
        pytest.param("validate", "error", 1, marks=pytest.mark.slow),
        pytest.param("generate", "error", 1, marks=pytest.mark.slow),
    ],
)
def test_a_command_that_ends_in_the_middle_of_an_epoch(command, end, status, data, trained, tmp_path):
    words = TRAIN if command == "train" else f"{READ} --task translation"
    words = words.replace("--max-update 1 ", "" if end == "sigterm" else "--max-update 1 ")
    words = words.format(checkpoint=trained / "checkpoint_last.pt")
    words += f" --save-dir {tmp_path}" if command == "train" else ""
    line = [sys.executable, "-c", SLOW_COLLATER, command, end, *split((*plugin(data), words))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(line, env=environment, cwd=str(ROOT), capture_output=True, text=True)
    assert done.returncode == status, (done.stdout + done.stderr)[-3000:]


class Slow:
    """Iterable of numbers that takes 0.05 seconds for each, and can fail at the fourth."""

    def __init__(self, fails=False):
        self.fails = fails

    def __len__(self):
        return 1000

    def __iter__(self):
        for number in range(1000):
            time.sleep(0.05)
            if self.fails and number > 2:
                raise OSError("the disk has gone")
            yield number


@pytest.mark.parametrize("size", [1, 10])
@pytest.mark.parametrize("fails", [False, True])
def test_the_thread_ends_whether_its_queue_is_full_or_not(size, fails):
    batches = iterators.BufferedIterator(size, Slow(fails))
    assert next(batches) == 0
    started = time.monotonic()
    end_loader_threads()
    assert not batches._consumer.is_alive() and time.monotonic() - started < 10
    end_loader_threads()
