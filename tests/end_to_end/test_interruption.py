"""fairseq-train is killed or terminated at some moment, and continues with the same command."""

import re

import pytest
from forked import run_trainings
from reversal import AUTHORS_COMMAND
from saved_training import assert_same_training, load

END = 14  # updates: two epochs
EACH = "--save-interval-updates 1 --keep-interval-updates 2 --disable-validation"


def command(data, folder, *words):
    return {"argvs": [(data, AUTHORS_COMMAND, EACH, f"--max-update {END}", "--save-dir", folder, *words)]}


@pytest.fixture(scope="module")
def straight(data, tmp_path_factory):
    """Last checkpoint of a run without interruption."""
    folder = tmp_path_factory.mktemp("straight")
    ((statuses, log),) = run_trainings(command(data, folder))
    assert statuses == [0], log[-2000:]
    return load(folder / "checkpoint_last.pt")


def saved(log):
    """Return the numbers of updates at which complete checkpoints were saved."""
    return [int(n) for n in re.findall(r"Saved checkpoint \S+ \(epoch \d+ @ (\d+) updates", log)]


def went_on_from(log):
    found = re.findall(r"Loaded checkpoint \S+ \(epoch \d+ @ (\d+) updates\)", log)
    return int(found[0]) if found else 0


def test_killed_at_any_moment(data, straight, tmp_path):
    """No saved checkpoint is lost if a run is killed several times, also while it writes a checkpoint."""
    run = command(data, tmp_path)
    moments = [
        f"Preparing to save checkpoint for epoch {e} @ {n} " for e, n in ((1, 1), (1, 4), (1, 7), (2, 9))
    ]
    moments[2:2] = ["checkpoint_1_6.pt (epoch 1 @ 6 updates", "begin training epoch"]
    runs = [{**run, "signal": "SIGKILL", "after": moment} for moment in moments]
    complete = 0
    leftover = tmp_path / "checkpoint_1_99.pt.tmp"  # of a run that was killed before this one
    leftover.touch()
    for statuses, log in run_trainings(*runs, run):
        assert statuses == [-9] or statuses == [0], log[-2000:]
        assert went_on_from(log) >= complete
        complete = max([went_on_from(log), *saved(log)])
    assert statuses == [0] and complete == END and not list(tmp_path.glob("*.tmp"))
    assert_same_training(straight, load(tmp_path / "checkpoint_last.pt"))


def test_terminated(data, straight, tmp_path):
    """SIGTERM goes to all processes of the job, including the worker of the data loader."""
    run = command(data, tmp_path, "--save-interval-updates 1000 --num-workers 1")
    first, second = run_trainings({**run, "signal": "SIGTERM", "after": "num_updates=3,"}, run)
    assert first[0] == [143], first[1][-2000:]
    assert "stopped by a signal after " in first[1] and "Traceback" not in first[1]
    assert 3 <= went_on_from(second[1]) < END and second[0] == [0]
    assert_same_training(straight, load(tmp_path / "checkpoint_last.pt"))


@pytest.mark.slow
@pytest.mark.guard
def test_terminated_at_the_end_of_an_epoch(data, straight, tmp_path):
    """The epoch is completed and saved first. The resumed run begins with the next epoch."""
    run = command(data, tmp_path, "--save-interval-updates 1000")
    first, second = run_trainings(
        {**run, "signal": "SIGTERM", "after": "Preparing to save checkpoint for epoch 1 @ 7"}, run
    )
    assert first[0] == [143] and saved(first[1]) == [7], first[1][-2000:]
    assert went_on_from(second[1]) == 7 and second[0] == [0]
    assert_same_training(straight, load(tmp_path / "checkpoint_last.pt"))


def test_terminated_between_two_shards(data, tmp_path):
    """The next epoch reads other data, and its iterator has no state yet when the checkpoint is saved."""
    words = f"{AUTHORS_COMMAND} --max-epoch 3 --save-interval 3 --save-dir"
    shards = f"{data}:{data}"
    (stopped, log), (resumed, again), straight = run_trainings(
        {
            "argvs": [(shards, words, tmp_path / "stopped")],
            "signal": "SIGTERM",
            "after": "begin validation on",
        },
        {"argvs": [(shards, words, tmp_path / "stopped")]},
        {"argvs": [(shards, words, tmp_path / "straight")]},
    )
    assert stopped == [143] and saved(log) == [7], log[-2000:]
    assert resumed == straight[0] == [0] and went_on_from(again) == 7, again[-2000:]
    assert_same_training(*(load(tmp_path / name / "checkpoint_last.pt") for name in ("straight", "stopped")))


def test_terminated_without_checkpoints(data, tmp_path):
    """Status 143 and the advice to repeat the command mean that a checkpoint was saved."""
    run = {"signal": "SIGTERM", "after": "num_updates=3,"}
    no_last, again, no_save = run_trainings(
        {**command(data, tmp_path, "--save-interval-updates 1000 --no-last-checkpoints"), **run},
        command(data, tmp_path, "--save-interval-updates 1000 --no-last-checkpoints"),
        {**command(data, tmp_path / "none", "--no-save"), **run},
    )
    assert no_last[0] == [143] and "Repeat the command to resume" in no_last[1]
    assert again[0] == [0] and went_on_from(again[1]) >= 3
    assert no_save[0] == [1] and "Repeat the command" not in no_save[1]
    assert "--no-save has saved none of them" in no_save[1] and "Traceback" not in no_save[1]
