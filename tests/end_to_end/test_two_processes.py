"""Training with two processes on a CPU: equal to one process, failures, and termination."""

import functools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import refused
from forked import ROOT, USER_DIR, run_trainings, split
from reversal import AUTHORS_COMMAND
from saved_training import assert_equal, assert_same_training, load
from test_resumed_schedules import command
from test_resuming import ADAM

from luna_fairseq.checks.same_training import KEY

UPDATES = 10
# Two processes draw the same random numbers for both batches. One process draws new ones for the second.
COMMON = (
    f"--dropout 0 --attention-dropout 0 --activation-dropout 0 --disable-validation --max-update {UPDATES}"
)
OPTIMIZERS = {"apollo": AUTHORS_COMMAND, "adam": ADAM}
BACKENDS = ("c10d", "legacy_ddp")


def address():
    return f"tcp://localhost:{random.randint(20000, 60000)}"


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """Function that trains the runs of an optimizer once, such as apollo-one, and returns their folder."""

    @functools.lru_cache(maxsize=None)
    def make(name):
        folder = tmp_path_factory.mktemp(name)
        base = (data, OPTIMIZERS[name], COMMON)
        plan = [{"argvs": [(*base, "--update-freq 2 --save-dir", folder / f"{name}-one")]}]
        for backend in BACKENDS:
            two = f"--distributed-world-size 2 --distributed-no-spawn --distributed-init-method {address()}"
            two += f" --ddp-backend {backend} --distributed-rank"
            target = ("--save-dir", folder / f"{name}-{backend}")
            plan.append({"argvs": [(*base, f"{two} {rank}", *target) for rank in (0, 1)]})
        for (statuses, log), run in zip(run_trainings(*plan), plan):
            assert statuses == [0] * len(run["argvs"]), log[-3000:]
        return folder

    return make


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name", ["apollo", pytest.param("adam", marks=[pytest.mark.slow, pytest.mark.guard])]
)
def test_two_equal_one_with_twice_the_batch(name, backend, runs):
    """Weights are equal up to rounding, because the gradients are summed in another order."""
    one, two = (load(runs(name) / f"{name}-{kind}" / "checkpoint_last.pt") for kind in ("one", backend))
    assert one["optimizer_history"][-1] == two["optimizer_history"][-1]
    assert two["cfg"]["distributed_training"]["distributed_world_size"] == 2
    for key, expected in one["model"].items():
        assert relative_error(two["model"][key], expected) < 1e-5, key
    states = one["last_optimizer_state"]["state"], two["last_optimizer_state"]["state"]
    for key, expected in states[0].items():
        for part in expected:
            if hasattr(expected[part], "norm") and expected[part].dim() > 0:
                assert relative_error(states[1][key][part], expected[part]) < 1e-3, (key, part)


def relative_error(found, expected):
    return float((found - expected).double().norm() / (expected.double().norm() + 1e-12))


def start(*words, launcher=()):
    """Start fairseq-train on the CPU, and return the process."""
    line = [sys.executable, *launcher, "-m", "fairseq_cli.train", "--user-dir", USER_DIR, *split(words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(line, env=environment, cwd=str(ROOT), **options)


def read_until_third_update(process):
    read = []
    for line in process.stdout:
        read.append(line)
        if "num_updates=3," in line:
            return "".join(read)
    raise AssertionError("".join(read)[-3000:])


def workers(process):
    """Return the ids of the processes that ``process`` has spawned."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == process.pid and b"spawn_main" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except (OSError, IndexError):  # the process has ended
            continue
    return sorted(found)


ENDLESS = "--max-update 100000 --disable-validation --distributed-world-size 2 --cpu"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
@pytest.mark.slow
@pytest.mark.guard
def test_a_process_that_dies_ends_the_job(data, tmp_path):
    with start(data, AUTHORS_COMMAND, ENDLESS, "--save-dir", tmp_path) as process:
        read_until_third_update(process)
        both = workers(process)
        assert len(both) == 2
        os.kill(both[1], signal.SIGKILL)
        rest = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in both)
    assert rest.strip().splitlines()[-1].startswith("luna_fairseq: error: "), rest[-2000:]


@pytest.mark.slow
@pytest.mark.guard
def test_an_error_of_the_user_in_both_processes_is_one_line(data, tmp_path):
    """Both processes fail, but the error is printed once."""
    words = (data, AUTHORS_COMMAND, ENDLESS, "--decoder-embed-dim 16 --save-dir", tmp_path)
    with start(*words) as process:
        log = process.communicate(timeout=120)[0]
    errors = [line for line in log.splitlines() if "error: " in line]
    assert process.returncode == 1 and "Traceback" not in log, log[-3000:]
    assert len(errors) == 1 and errors[0].startswith("luna_fairseq: error: --decoder-embed-dim 16 differs")


@pytest.mark.slow
@pytest.mark.guard
def test_terminating_the_parent(data, tmp_path):
    """Both processes stop after the same update and save a checkpoint."""
    with start(data, AUTHORS_COMMAND, ENDLESS, "--save-dir", tmp_path) as process:
        read_until_third_update(process)
        process.terminate()
        rest = process.communicate(timeout=90)[0]
    assert process.returncode == 143 and "Traceback" not in rest, rest[-3000:]
    stopped = [int(n) for n in re.findall(r"stopped by a signal after (\d+) updates", rest)]
    assert len(stopped) == 2 and stopped[0] == stopped[1] >= 3
    assert load(tmp_path / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == stopped[0]


GUARD = [pytest.mark.slow, pytest.mark.guard]
# The two processes are started by the test, by fairseq, or by torchrun.
LAUNCHERS = ["forked", pytest.param("spawned", marks=GUARD), pytest.param("torchrun", marks=GUARD)]


def launch_forked(*words):
    """Train with two processes, and return their exit statuses and the log."""
    two = f"--distributed-world-size 2 --distributed-no-spawn --distributed-init-method {address()}"
    (result,) = run_trainings({"argvs": [(*words, two, f"--distributed-rank {n}") for n in (0, 1)]})
    return result


def launch(launcher, *words):
    """Train with two processes to the end, and return the log."""
    if launcher == "forked":
        statuses, log = launch_forked(*words)
        assert statuses == [0, 0], log[-3000:]
        return log
    torchrun = f"-m torch.distributed.run --nproc_per_node 2 --master_port {address().split(':')[-1]}"
    if launcher == "torchrun":
        process = start(*words, launcher=torchrun.split())
    else:
        process = start(*words, "--distributed-world-size 2 --cpu")
    with process:
        log = process.communicate(timeout=300)[0]
    assert process.returncode == 0, log[-3000:]
    return log


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_resumed_in_mid_epoch_it_equals_one_that_never_stopped(launcher, data, runs, tmp_path):
    """The training is started again with the same command, as in a job that a scheduler requeues."""
    words = (data, AUTHORS_COMMAND, COMMON, "--save-dir", tmp_path)
    for updates in (UPDATES // 2, UPDATES):
        log = launch(launcher, *words, f"--max-update {updates}")
    assert f"(epoch 2 @ {UPDATES // 2} updates)" in log
    folders = (runs("apollo") / "apollo-c10d", tmp_path)
    assert_same_training(*(load(folder / "checkpoint_last.pt") for folder in folders))


def test_resumed_with_all_that_a_checkpoint_holds(data, tmp_path):
    """EMA, schedule, --patience, the name of the run and the dictionaries reach both processes."""
    words = (data, command("reduce_lr_on_plateau"), "--store-ema --ema-decay 0.9 --patience 2 --save-dir")
    launch("forked", *words, tmp_path / "straight", "--max-epoch 9")
    for epochs in ("1", "9"):
        log = launch("forked", *words, tmp_path / "stopped", "--max-epoch", epochs)
    assert "early stop since" in log
    straight, stopped, first = (
        load(tmp_path / name)
        for name in ("straight/checkpoint_last.pt", "stopped/checkpoint_last.pt", "stopped/checkpoint1.pt")
    )
    assert_same_training(straight, stopped)
    for part in ("ema", "patience"):
        assert_equal(straight["extra_state"][part], stopped["extra_state"][part], part)
    assert stopped["extra_state"][KEY] == first["extra_state"][KEY]
    assert "nothing to train" in launch("forked", *words, tmp_path / "stopped", "--max-epoch 9")
    other = tmp_path / "permuted"
    shutil.copytree(str(data), str(other))
    for path in other.glob("dict.*.txt"):
        path.write_text("".join(sorted(path.read_text().splitlines(True), reverse=True)))
    statuses, log = launch_forked(other, *words[1:], tmp_path / "stopped", "--max-epoch 9")
    assert statuses == [1, 1] and "was trained with another source dictionary" in log


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_starting_from_another_model(launcher, data, runs, tmp_path):
    path = runs("apollo") / "apollo-one" / "checkpoint_last.pt"
    log = launch(
        launcher, data, AUTHORS_COMMAND, COMMON, "--finetune-from-model", path, "--save-dir", tmp_path
    )
    assert f"loading pretrained model from {path}" in log and load(tmp_path / "checkpoint_last.pt")


def test_sharding_is_refused_for_apollo(data, tmp_path):
    words = (data, AUTHORS_COMMAND, "--ddp-backend fully_sharded --save-dir", tmp_path)
    line = refused("train", "--user-dir", Path(USER_DIR), *words)
    assert "--ddp-backend fully_sharded does not work with --optimizer apollo" in line
