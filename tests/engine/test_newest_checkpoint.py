"""Which checkpoint a run goes on from, and that a copy is whole or absent."""

import logging
import os
import shutil

import pytest
import torch

from fairseq.file_io import PathManager
from luna_fairseq.engine.checkpoints import damage
from luna_fairseq.engine.newest_checkpoint import provide_last_checkpoint


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
    """One bit of the weights."""
    content = path.read_bytes()
    at = content.index(torch.full((50,), 5.0).numpy().tobytes())
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    set_age(path, age)


def updates(folder):
    return torch.load(str(folder / "checkpoint_last.pt"))["optimizer_history"][-1]["num_updates"]


@pytest.fixture
def folder(tmp_path):
    """Saves after 3, 4 (an epoch's end) and 5 updates; the last checkpoint is a copy of the newest."""
    write(tmp_path / "checkpoint_1_3.pt", 3, age=30)
    write(tmp_path / "checkpoint1.pt", 4, age=20)
    write(tmp_path / "checkpoint_2_5.pt", 5, age=10)
    write(tmp_path / "checkpoint_last.pt", 5, age=9)
    write(tmp_path / "averaged.pt", 99, age=0)
    return tmp_path


def test_an_intact_last_checkpoint_is_left_alone(folder, caplog):
    before = (folder / "checkpoint_last.pt").stat().st_mtime_ns
    provide_last_checkpoint(folder)
    assert (folder / "checkpoint_last.pt").stat().st_mtime_ns == before and not caplog.records


@pytest.mark.parametrize(
    "spoil, reason", [(halve, "is truncated"), (flip, "is damaged"), (None, "is missing")]
)
def test_the_newest_intact_one_takes_its_place(folder, spoil, reason, caplog):
    last = folder / "checkpoint_last.pt"
    spoil(last, 5) if spoil else last.unlink()
    with caplog.at_level(logging.WARNING):
        provide_last_checkpoint(folder)
    assert updates(folder) == 5 and damage(last) is None
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{last} {reason}")
    assert (
        f"going on from {folder / 'checkpoint_2_5.pt'}, the newest intact one (5 updates)"
        in record.getMessage()
    )


def test_damaged_ones_are_passed_over(folder, caplog):
    halve(folder / "checkpoint_last.pt", 5)
    flip(folder / "checkpoint_2_5.pt", 6)
    provide_last_checkpoint(folder)
    assert updates(folder) == 4
    assert f"{folder / 'checkpoint_2_5.pt'} is no intact checkpoint of a run: passed over" in caplog.text


def test_killed_before_the_copy(folder, caplog):
    """The newest save is complete, its copy is of the one before."""
    write(folder / "checkpoint_last.pt", 4, age=19)
    provide_last_checkpoint(folder)
    assert updates(folder) == 5 and "checkpoint_last.pt is older: going on from" in caplog.text


def test_a_newer_file_with_fewer_updates_changes_nothing(folder, caplog):
    write(folder / "checkpoint_best.pt", 3, age=0)
    provide_last_checkpoint(folder)
    assert updates(folder) == 5 and not caplog.records


def test_nothing_intact_changes_nothing(folder):
    for path in folder.glob("checkpoint*.pt"):
        halve(path, 5)
    before = (folder / "checkpoint_last.pt").read_bytes()
    provide_last_checkpoint(folder)
    assert (folder / "checkpoint_last.pt").read_bytes() == before


def test_the_model_to_fine_tune_is_no_checkpoint_of_the_run(tmp_path):
    write(tmp_path / "checkpoint_best.pt", 7, age=0)
    provide_last_checkpoint(tmp_path, excluded=str(tmp_path / "checkpoint_best.pt"))
    assert not (tmp_path / "checkpoint_last.pt").exists()


def test_suffix_and_files_of_old_versions_of_torch(tmp_path):
    write(tmp_path / "checkpoint_1_3-x.pt", 3, age=0, _use_new_zipfile_serialization=False)
    write(tmp_path / "checkpoint_1_4.pt", 4, age=0)
    provide_last_checkpoint(tmp_path, suffix="-x")
    shutil.move(str(tmp_path / "checkpoint_last-x.pt"), str(tmp_path / "checkpoint_last.pt"))
    assert updates(tmp_path) == 3


def test_a_copy_is_whole_or_absent(folder, monkeypatch):
    """The copy fails half way, as when the process is killed there."""
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
