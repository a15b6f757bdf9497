"""The checkpoint from which a run continues. Files of the user are kept, and a copy is complete or absent."""

import os
import shutil
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from fairseq.file_io import PathManager
from fairseq.trainer import Trainer
from luna_fairseq.engine.early_stopping import has_run_out_of_patience
from luna_fairseq.engine.starting_point import _start_training
from luna_fairseq.files.checkpoints import find_intact


def write(path, updates, age, **torch_options):
    state = {
        "model": {"w": torch.full((50,), float(updates))},
        "optimizer_history": [{"num_updates": updates}],
        "last_optimizer_state": {},
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": updates}},
    }
    torch.save(state, str(path), **torch_options)
    set_age(path, age)


def set_age(path, age):
    os.utime(str(path), (1_000_000 - age, 1_000_000 - age))


def halve(path, age):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    set_age(path, age)


def flip(path, age):
    """Flip one bit of the weights."""
    content = path.read_bytes()
    at = content.index(torch.full((50,), 5.0).numpy().tobytes())
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    set_age(path, age)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with checkpoints after 3, 4 and 5 updates, and a copy of the newest."""
    write(tmp_path / "checkpoint_1_3.pt", 3, age=30)
    write(tmp_path / "checkpoint1.pt", 4, age=20)
    write(tmp_path / "checkpoint_2_5.pt", 5, age=10)
    write(tmp_path / "checkpoint_last.pt", 5, age=9)
    write(tmp_path / "averaged.pt", 99, age=0)
    return tmp_path


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def test_an_intact_last_checkpoint_is_used(folder, caplog):
    write(folder / "checkpoint_best.pt", 3, age=0)  # newer, with fewer updates
    assert find_intact(folder) is None and not caplog.records


@pytest.mark.parametrize("spoil, reason", [(halve, "is truncated"), (flip, "is damaged")])
def test_the_newest_intact_checkpoint_replaces_a_damaged_one(folder, spoil, reason, caplog):
    last = folder / "checkpoint_last.pt"
    spoil(last, 5)
    before = last.read_bytes()
    assert find_intact(folder) == folder / "checkpoint_2_5.pt" and last.read_bytes() == before
    (text,) = messages(caplog)
    assert text.startswith(f"{last} {reason}")
    assert text.endswith(
        f"resumes from the newest intact checkpoint, {folder / 'checkpoint_2_5.pt'} (5 updates)"
    )


def test_damaged_checkpoints_are_skipped(folder, caplog):
    halve(folder / "checkpoint_last.pt", 5)
    flip(folder / "checkpoint_2_5.pt", 6)
    assert find_intact(folder) == folder / "checkpoint1.pt"
    assert messages(caplog)[0] == f"{folder / 'checkpoint_2_5.pt'} is not an intact checkpoint and is skipped"
    for path in folder.glob("checkpoint*.pt"):
        halve(path, 5)
    assert find_intact(folder) is None


def roll_back(folder, last):
    shutil.move(str(folder / "checkpoint1.pt"), str(last))


def copy_back(folder, last):
    shutil.copy2(str(folder / "checkpoint1.pt"), str(last))


def remove(folder, last):
    last.unlink()


@pytest.mark.parametrize(
    "change, state", [(roll_back, "has 4 updates"), (copy_back, "has 4 updates"), (remove, "is missing")]
)
def test_files_that_the_user_changed_are_respected(folder, change, state, caplog):
    """A warning names the newer checkpoint and how to continue from it. Nothing is overwritten."""
    last, newest = folder / "checkpoint_last.pt", folder / "checkpoint_2_5.pt"
    change(folder, last)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert find_intact(folder) is None and before == {path: path.read_bytes() for path in folder.iterdir()}
    advice = f"To resume from that checkpoint, use --restore-file {newest}"
    text = f"{last} {state}, but {newest} has 5 updates. {advice}"
    assert messages(caplog) == [text]


def test_checkpoints_with_a_suffix_and_of_an_old_torch(tmp_path):
    write(tmp_path / "checkpoint_1_3-x.pt", 3, age=0, _use_new_zipfile_serialization=False)
    write(tmp_path / "checkpoint_1_4.pt", 4, age=0)
    (tmp_path / "checkpoint_last-x.pt").write_bytes(b"half")
    assert find_intact(tmp_path, suffix="-x") == tmp_path / "checkpoint_1_3-x.pt"


def test_a_training_forgets_the_scores_of_an_earlier_one(monkeypatch):
    functions = (SimpleNamespace(best=3.0, num_runs=2), SimpleNamespace(best=3.0))
    monkeypatch.setattr("fairseq_cli.train.should_stop_early", functions[0])
    monkeypatch.setattr("fairseq.checkpoint_utils.save_checkpoint", functions[1])
    assert has_run_out_of_patience(2)
    monkeypatch.setattr("luna_fairseq.engine.starting_point._choose_checkpoint", lambda cfg, trainer: cfg)
    dataset, distributed = SimpleNamespace(disable_validation=True), SimpleNamespace(distributed_world_size=1)
    trainer = Trainer.__new__(Trainer)
    trainer.cfg = SimpleNamespace(dataset=dataset, distributed_training=distributed)
    _start_training(lambda *_: None, SimpleNamespace(no_save=True), trainer)
    assert not has_run_out_of_patience(2) and not any(hasattr(each, "best") for each in functions)


@pytest.mark.parametrize("trainer", [SimpleNamespace(), MagicMock()], ids=["partial", "mock"])
def test_a_program_of_the_user_may_pass_another_trainer(trainer):
    cfg = SimpleNamespace(restore_file="x.pt")
    assert _start_training(lambda *args, **kwargs: (args, kwargs), cfg, trainer, x=1) == (
        (cfg, trainer),
        {"x": 1},
    )


def test_a_copy_is_complete_or_absent(folder, monkeypatch):
    """The copy stops half way, as if the process were killed."""
    source, target = folder / "checkpoint1.pt", folder / "checkpoint_last.pt"
    before = target.read_bytes()

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fairseq.file_io.IOPathManager", None)
        patch.setattr("fairseq.file_io.shutil.copyfile", _interrupted_copy)
        PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_bytes() == before
    PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_bytes() == source.read_bytes() and not list(folder.glob("*.tmp"))


def _interrupted_copy(_, target):
    with open(target, "wb") as file:
        file.write(b"half")
    raise KeyboardInterrupt


def test_a_copy_that_fails_leaves_nothing_behind(folder, monkeypatch):
    def fill_disk(source, target):
        target_path = folder / "checkpoint_best.pt.tmp"
        target_path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", fill_disk)
    with pytest.raises(OSError):
        PathManager.copy(str(folder / "checkpoint1.pt"), str(folder / "checkpoint_best.pt"), overwrite=True)
    assert not list(folder.glob("*.tmp")) and not (folder / "checkpoint_best.pt").exists()
