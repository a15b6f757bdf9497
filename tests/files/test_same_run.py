"""Every command that continues a run compares its options and inputs with those of the beginning."""

import argparse
import subprocess
import sys
from contextlib import nullcontext
from functools import partial

import pytest
import torch

from luna_fairseq.checks.model_options import find_differences
from luna_fairseq.commands import train
from luna_fairseq.commands.launch import compute_launch
from luna_fairseq.errors import InputError
from luna_fairseq.files import sole_writer
from luna_fairseq.files.checksums import checksum_of_data
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.same_run import (
    check_same_run,
    parse_options,
    result_differences,
    select_fixed_options,
)
from luna_fairseq.lra import seeds
from luna_fairseq.masked_lm.finetuning import runs
from luna_fairseq.masked_lm.finetuning.runs import FineTuning

RECIPE = "bitext/demo"


@pytest.fixture
def data(tmp_path):
    """Folder with the file names of prepared data."""
    for name in ("train.bin", "valid.bin", "dict.txt", "src-bin/train.idx"):
        path = tmp_path / "data" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    return tmp_path / "data"


def begin_training(data, out, *words):
    line = train.build_command([RECIPE, str(data), "--save-dir", str(out), *words])
    (out / "checkpoint_last.pt").touch()
    return line


def begin_seeds(data, out, *words):
    """Run luna-lra-seeds with one seed, and interrupt it in its training."""
    args = argparse.Namespace(
        recipe="listops",
        data=data,
        out=out,
        models=["luna-16"],
        seeds=[1],
        figure=None,
        costs=None,
        curves=None,
    )

    def break_off(data, folder, *_):
        (folder / "checkpoint_last.pt").touch()
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(seeds, "train_and_test", break_off)
        seeds.run(args, list(words))


def begin_finetuning(data, out, *words):
    run = FineTuning.__new__(FineTuning)
    run.options = argparse.Namespace(pretrained=data.parent / "pretrained.pt", data=data)
    run.options.pretrained.write_text("weights")
    run._check_same_run(out, [str(data), "--lr", "1", *words])
    (out / "checkpoint_last.pt").touch()


COMMANDS = [begin_training, begin_seeds, begin_finetuning]


@pytest.mark.parametrize("begin", COMMANDS)
@pytest.mark.parametrize(
    "words, change, named",
    [
        (["--seed", "7"], None, "--seed"),
        (["--lr", "0.125"], None, "--lr"),
        ([], "train.bin", "data"),
        ([], "src-bin/train.idx", "data"),
        ([], "dict.txt", "data"),
    ],
)
def test_another_run_is_refused_in_one_line(begin, words, change, named, data, tmp_path):
    begin(data, tmp_path / "out")
    may_change = "--max-update 9 --log-interval 5 --checkpoint-activations".split()
    begin(data, tmp_path / "out", *may_change, *(["--dropout=0.3"] if begin is begin_training else []))
    if change:
        (data / change).write_text("something else of any length")
    with pytest.raises(InputError) as caught:
        begin(data, tmp_path / "out", *words)
    message = str(caught.value)
    assert named in message and "to start again" in message and "\n" not in message


@pytest.mark.parametrize("begin", [begin_seeds, begin_finetuning])
def test_a_run_whose_result_is_compared_keeps_its_dropout(begin, data, tmp_path):
    """The table would name a dropout that a part of the training did not have."""
    begin(data, tmp_path / "out")
    with pytest.raises(InputError, match="--attention-dropout"):
        begin(data, tmp_path / "out", "--attention-dropout", "0.3")


@pytest.mark.parametrize("begin", [begin_seeds, begin_finetuning])
def test_a_run_whose_result_is_compared_keeps_its_batch(begin, data, tmp_path):
    begin(data, tmp_path / "out")
    begin(data, tmp_path / "out", "--distributed-world-size", "1")
    for name in ("--max-tokens", "--distributed-world-size"):
        with pytest.raises(InputError, match=f"no {name} before, {name} 2 now"):
            begin(data, tmp_path / "out", name, "2")


@pytest.mark.parametrize("begin", [begin_seeds, begin_finetuning])
@pytest.mark.parametrize(
    "option, limit, refused",
    [
        ("--max-update", "39", "40 updates"),
        ("--max-update", "40", None),
        ("--max-epoch", "3", "4 epochs"),
        ("--max-epoch", "4", None),
        ("--max-epoch", "0", None),
    ],
)
def test_a_longer_run_is_not_tested_as_a_shorter_one(begin, option, limit, refused, data, tmp_path):
    begin(data, tmp_path / "out")
    (last,) = (tmp_path / "out").rglob("checkpoint_last.pt")
    for place in ({"epoch": 5, "iterations_in_epoch": 0}, {"epoch": 4, "iterations_in_epoch": 7}):
        state = {"extra_state": {"train_iterator": place}, "optimizer_history": [{"num_updates": 40}]}
        torch.save(state, str(last))
        with pytest.raises(InputError, match=f"{refused}, longer") if refused else nullcontext():
            begin(data, tmp_path / "out", option, limit)


@pytest.mark.parametrize("words", [["--reset-optimizer"], ["--restore-file", "x.pt"], ["--max-update", "3"]])
def test_explicit_requests_are_not_compared(words, data, tmp_path):
    begin_training(data, tmp_path / "out")
    words = [*words, "--seed", "9"] if "--max-update" not in words else words
    assert begin_training(data, tmp_path / "out", *words)[-2:] == words[-2:]


def test_the_pretrained_checkpoint_may_have_another_path(data, tmp_path):
    begin_finetuning(data, tmp_path / "out", "--finetune-from-model", "pretrained.pt")
    begin_finetuning(data, tmp_path / "out", "--finetune-from-model", "./pretrained.pt")


def finetune(data, out, *words):
    """Fine-tune with one setting, without training. Return True if the run was not finished before."""
    run, trained, pretrained = FineTuning.__new__(FineTuning), [], data.parent / "pretrained.pt"
    if not pretrained.exists():
        pretrained.touch()
    run.options = argparse.Namespace(pretrained=pretrained, data=data, at_a_time=1, out=out)
    run.data, run.steps = None, FinishedSteps(out, "finetune.json")

    def train(command, log, name, shown):
        trained.append(name)
        for file in ("checkpoint_last.pt", "checkpoint_best.pt"):
            (log.parent / file).touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_train_options", lambda folder, setting: [str(data), *words])
        patch.setattr(runs, "train_logged", train)
        patch.setattr(runs, "evaluate", lambda *_: ({"accuracy": 90.0}, [], ""))
        assert run._train_and_evaluate("run", None) == {"accuracy": 90.0}
    return bool(trained)


def test_a_refused_start_does_not_forget_a_finished_run(data, tmp_path):
    assert finetune(data, tmp_path / "out", "--seed", "1")
    with pytest.raises(InputError, match="--seed 1 before, --seed 2 now"):
        finetune(data, tmp_path / "out", "--seed", "2")
    assert not finetune(data, tmp_path / "out", "--seed", "1")


def test_a_finished_run_within_the_folder_of_the_data_is_found(data):
    assert finetune(data, data / "runs") and not finetune(data, data / "runs")
    (data / "label").mkdir()
    (data / "label" / "test.label").write_text("1")
    assert finetune(data, data / "runs")


def test_the_order_and_the_short_names_of_options_do_not_matter(data, tmp_path):
    begin_training(data, tmp_path / "out", "--seed", "7", "-s", "en", "-t", "de")
    begin_training(data, tmp_path / "out", "-t", "de", "--source-lang", "en", "--seed", "7")
    with pytest.raises(InputError, match="--source-lang en before, --source-lang fr now"):
        begin_training(data, tmp_path / "out", "--seed", "7", "-s", "fr", "-t", "de")


def test_a_reset_begins_a_new_record(data, tmp_path):
    begin_training(data, tmp_path / "out")
    begin_training(data, tmp_path / "out", "--reset-lr-scheduler", "--lr", "0.125")
    begin_training(data, tmp_path / "out", "--lr", "0.125")
    with pytest.raises(InputError, match="--lr 0.125 before"):
        begin_training(data, tmp_path / "out")


def test_the_batch_per_gpu_may_change_while_the_whole_batch_stays(data, tmp_path):
    def begin(*words):
        line = train.build_command(
            ["masked_lm/small", str(data), "--save-dir", str(tmp_path / "out"), *words]
        )
        (tmp_path / "out" / "checkpoint_last.pt").touch()
        return int(line[line.index("--update-freq") + 1])

    assert [begin(), begin("--batch-size", "8"), begin("--max-sentences=4"), begin()] == [2, 4, 8, 2]
    with pytest.raises(InputError, match="--batch-size 16 .*--batch-size 8"):
        begin("--batch-size", "8", "--update-freq", "2")


def test_the_precision_of_the_machine_is_that_of_the_beginning(data, tmp_path, monkeypatch):
    def begin(capability, *words):
        with monkeypatch.context() as patch:
            launch = partial(compute_launch, gpus=1, capability=capability)
            patch.setattr(train, "launch_here", launch)
            begin_training(data, tmp_path / "out", *words)

    begin((9, 0))
    with pytest.raises(InputError, match="precision --bf16 before, precision --fp32 now.*Give the same"):
        begin(None)
    for precision in ((8, 0), ()), (None, ["--bf16"]):
        begin(precision[0], *precision[1])


def test_without_checkpoints_nothing_is_compared(data, tmp_path):
    begin_training(data, tmp_path / "out")
    (tmp_path / "out" / "checkpoint_last.pt").unlink()
    begin_training(data, tmp_path / "out", "--seed", "9")
    with pytest.raises(InputError, match="--seed 9 .*--seed 7"):
        begin_training(data, tmp_path / "out", "--seed", "7")


def test_a_run_of_a_version_without_records_continues(data, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text('"a checksum"')
    check_same_run(tmp_path / "out", "--out", {"--lr": "1"})
    (tmp_path / "out" / "checkpoint_last.pt").touch()
    with pytest.raises(InputError, match="no --x .*--x y"):
        check_same_run(tmp_path / "out", "--out", {"--lr": "1", "--x": "y"})
    (tmp_path / "out" / "run.json").write_text("{")
    with pytest.raises(InputError, match="run.json"):
        check_same_run(tmp_path / "out", "--out", {})


@pytest.mark.parametrize("arch", ["luna", "luna_base_tied", "luna_lm", "transformer", "luna_bert"])
def test_options_marked_in_a_dataclass_may_change(arch):
    words = f"--arch {arch} --encoder-layers 2 --dropout 0.3 --max-epoch=3 --checkpoint-activations"
    assert select_fixed_options(words.split()) == {"--arch": arch, "--encoder-layers": "2"}


def test_a_record_of_an_earlier_version_lacks_noise(data, tmp_path):
    """The checkpoint refuses another value of --quant-noise-pq."""
    begin_training(data, tmp_path / "out")
    begin_training(data, tmp_path / "out", "--quant-noise-pq", "0.1")
    one, other = ({"_name": "luna", "quant_noise_pq": value} for value in (0.0, 0.1))
    assert find_differences(one, other) == [("quant_noise_pq", 0.0, 0.1)]


def test_both_names_of_an_option_may_change():
    for arch in ("--arch", "-a"):
        words = f"{arch} luna --relu-dropout 0.1 --luna-backend chunk"
        assert select_fixed_options(words.split()) == {"--arch": "luna"}


def test_results_are_compared_with_all_that_changes_them():
    """Unlike a resumed run, two finished runs must agree in their dropout and duration."""
    words = "--arch luna_lra_listop --dropout 0.1 --max-update 9".split()
    assert result_differences(words, [*words, "--checkpoint-activations", "--cpu"]) == []
    assert result_differences(words, [*words, "--dropout=1"]) == ["--dropout 0.1 before, --dropout 1 now"]
    assert result_differences([*words, "--max-sentences", "4"], [*words, "--batch-size=4"]) == []
    assert result_differences(words, [*words, "--distributed-world-size", "1"]) == []
    assert len(result_differences(words, [*words, "--distributed-world-size", "8"])) == 1
    assert result_differences(words, words[:-2]) == ["--max-update 9 before, no --max-update now"]


HOLD = """
import sys, time
from pathlib import Path
from luna_fairseq.commands import train
train.build_command(sys.argv[1:])
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_second_command_leaves_the_record_of_a_run_that_has_not_saved_yet(data, tmp_path, monkeypatch):
    monkeypatch.setattr(sole_writer, "PATIENCE", 0.0)
    words = [RECIPE, str(data), "--save-dir", str(tmp_path / "out")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD, *words, "--lr", "0.004"], **pipes) as first:
        assert "locked\n" in iter(first.stdout.readline, "")
        record = (tmp_path / "out" / "run.json").read_text()
        with pytest.raises(InputError, match="out"):
            train.build_command([*words, "--lr", "0.0001"])
        first.communicate()
    assert "0.004" in record and (tmp_path / "out" / "run.json").read_text() == record


HEIR = """
import os, sys
from pathlib import Path
from luna_fairseq.files.sole_writer import LOCKS, handles, lock_folder
folder = Path(sys.argv[1])
assert os.environ[LOCKS]
lock_folder(folder)
sys.exit(10 * bool(handles()))
"""


def test_programs_that_a_command_starts_write_under_its_lock(tmp_path):
    """A child with the handle keeps the lock itself. A child without it relies on its parent."""
    sole_writer.lock_folder(tmp_path)
    command = [sys.executable, "-c", HEIR, str(tmp_path)]
    assert subprocess.call(command, pass_fds=sole_writer.handles()) == 10
    assert subprocess.call(command) == 0


def test_options_and_contents(data, tmp_path):
    words = ["DATA", "--lr", "1", "2", "--flag", "--lr=3", "--adam-betas", "(0.9, 0.98)"]
    assert parse_options(words) == {"--lr": "3", "--flag": "", "--adam-betas": "(0.9, 0.98)"}
    words = ["--seed", "-1", "-s", "en", "-tde", "-a=luna", "--arch", "luna_lm"]
    long = {"--source-lang": "en", "--target-lang": "de", "--arch": "luna_lm"}
    assert parse_options(words) == {"--seed": "-1", **long}
    assert parse_options(["--weight-decay", "1", "--wd=2"]) == {"--weight-decay": "2"}
    words = ["--batch-size", "8", "--max-sentences=4", "--save-async"]
    assert parse_options(words) == {"--batch-size": "4", "--write-checkpoints-asynchronously": ""}
    before = checksum_of_data([data])
    (data / "valid.bin").write_text("other")
    assert checksum_of_data([data]) == before != checksum_of_data([data], ("train", "valid"))
