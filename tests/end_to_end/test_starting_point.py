"""A run starts from the given checkpoint and on existing text, or is refused."""

import shutil

import pytest
from commands import plugin, refused
from forked import run_trainings
from reversal import AUTHORS_COMMAND
from saved_training import updates


@pytest.fixture(scope="module")
def logs(trained, data, tmp_path_factory):
    """Dictionary from the name of a run to its exit statuses, log and folder."""
    folder = tmp_path_factory.mktemp("starts")
    (folder / "a folder" / "checkpoint_last.pt").mkdir(parents=True)
    going_on = folder / "going on"
    going_on.mkdir()
    shutil.copy(str(trained / "checkpoint_last.pt"), str(going_on))
    wordings = {
        "missing": (data, "--restore-file", folder / "nowhere.pt"),
        "finetune": (data, "--finetune-from-model", folder / "nowhere.pt"),
        "a folder to finetune": (data, "--finetune-from-model", folder),
        "once": (data, "--continue-once", folder / "nowhere.pt"),
        "going on": (data, "--finetune-from-model", folder / "nowhere.pt"),
        "a folder": (data,),
        "one too long": (data, "--max-source-positions 5"),
    }
    common = (AUTHORS_COMMAND, "--max-update 13")
    runs = [{"argvs": [(*words, *common, "--save-dir", folder / name)]} for name, words in wordings.items()]
    return {name: (*result, folder / name) for name, result in zip(wordings, run_trainings(*runs))}


@pytest.mark.parametrize(
    "name, message",
    [
        (
            "missing",
            "luna_fairseq: error: --restore-file {folder}/nowhere.pt does not exist or is not a file",
        ),
        ("finetune", "--finetune-from-model {folder}/nowhere.pt does not exist"),
        ("a folder to finetune", "luna_fairseq: error: --finetune-from-model {folder} does not exist or is"),
        ("once", "luna_fairseq: error: --continue-once {folder}/nowhere.pt does not exist or is not a file"),
        ("a folder", "luna_fairseq: error: {folder}/a folder/checkpoint_last.pt is a folder"),
        ("one too long", "since max_positions=(5, 1024), skip this example with"),
    ],
)
def test_refused_before_anything_is_trained(name, message, logs):
    statuses, log, folder = logs[name]
    assert statuses == [1] and message.format(folder=folder.parent) in log
    assert "begin training epoch" not in log and not list(folder.glob("*best*"))


def test_a_run_that_goes_on_no_longer_needs_what_it_started_from(logs):
    statuses, log, folder = logs["going on"]
    assert statuses == [0], log[-2000:]
    assert updates(folder / "checkpoint_last.pt") == 13


def test_a_name_of_the_save_dir(trained, data):
    words = (AUTHORS_COMMAND, "--restore-file checkpoint_best.pt", "--save-dir", trained)
    line = refused("train", *plugin(data), *words)
    assert line.endswith(f". Use --restore-file {trained}/checkpoint_best.pt")


def test_an_interrupted_command_resumes_although_it_names_a_start(trained, data, tmp_path):
    """A command with another learning rate starts again, because it resets the schedule for this rate."""
    start = tmp_path / "start.pt"
    shutil.copy(str(trained / "checkpoint_last.pt"), str(start))
    words = (data, AUTHORS_COMMAND, "--restore-file", start, "--reset-optimizer --reset-dataloader")
    words = (*words, "--max-update 8 --save-dir", tmp_path)
    interruption = {"signal": "SIGTERM", "after": "num_updates=3,"}
    (statuses, log), other = run_trainings(
        {"argvs": [words], **interruption}, {"argvs": [(*words, "--lr 0.2")], **interruption}
    )
    assert statuses == other[0] == [143] and "training resumes from" not in log + other[1], log[-2000:]
    start.unlink()
    ((statuses, log),) = run_trainings({"argvs": [(*words, "--lr 0.2")]})
    assert statuses == [0] and f"training resumes from {tmp_path}/checkpoint_last.pt" in log, log[-2000:]
    assert "num_updates=3," not in log and updates(tmp_path / "checkpoint_last.pt") == 8
