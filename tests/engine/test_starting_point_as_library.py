"""Which checkpoint a run goes on from, what a user put there being left alone; a copy is whole or absent."""

import os
import shutil
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from fairseq.file_io import PathManager
from luna_fairseq.engine.starting_point import _begin
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
    """One bit of the weights."""
    content = path.read_bytes()
    at = content.index(torch.full((50,), 5.0).numpy().tobytes())
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    set_age(path, age)


@pytest.fixture
def folder(tmp_path):
    """Saves after 3, 4 (an epoch's end) and 5 updates; the last checkpoint is a copy of the newest."""
    write(tmp_path / "checkpoint_1_3.pt", 3, age=30)
    write(tmp_path / "checkpoint1.pt", 4, age=20)
    write(tmp_path / "checkpoint_2_5.pt", 5, age=10)
    write(tmp_path / "checkpoint_last.pt", 5, age=9)
    write(tmp_path / "averaged.pt", 99, age=0)
    return tmp_path


def said(caplog):
    return [record.getMessage() for record in caplog.records]


def test_an_intact_last_checkpoint_is_taken(folder, caplog):
    write(folder / "checkpoint_best.pt", 3, age=0)  # newer, with fewer updates
    assert find_intact(folder) is None and not caplog.records


@pytest.mark.parametrize("spoil, reason", [(halve, "is truncated"), (flip, "is damaged")])
def test_the_newest_intact_one_takes_the_place_of_a_damaged_one(folder, spoil, reason, caplog):
    last = folder / "checkpoint_last.pt"
    spoil(last, 5)
    before = last.read_bytes()
    assert find_intact(folder) == folder / "checkpoint_2_5.pt" and last.read_bytes() == before
    (text,) = said(caplog)
    assert text.startswith(f"{last} {reason}")
    assert text.endswith(f"going on from {folder / 'checkpoint_2_5.pt'}, the newest intact one (5 updates)")


def test_damaged_ones_are_passed_over(folder, caplog):
    halve(folder / "checkpoint_last.pt", 5)
    flip(folder / "checkpoint_2_5.pt", 6)
    assert find_intact(folder) == folder / "checkpoint1.pt"
    assert said(caplog)[0] == f"{folder / 'checkpoint_2_5.pt'} is no intact checkpoint of a run: passed over"
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
def test_what_a_user_does_by_hand_counts(folder, change, state, caplog):
    """A line says what is newer, and how to go on from it; nothing is overwritten."""
    last, newest = folder / "checkpoint_last.pt", folder / "checkpoint_2_5.pt"
    change(folder, last)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert find_intact(folder) is None and before == {path: path.read_bytes() for path in folder.iterdir()}
    text = f"{last} {state}, {newest} has 5 updates: --restore-file {newest} would go on from it"
    assert said(caplog) == [text]


def test_suffix_and_files_of_old_versions_of_torch(tmp_path):
    write(tmp_path / "checkpoint_1_3-x.pt", 3, age=0, _use_new_zipfile_serialization=False)
    write(tmp_path / "checkpoint_1_4.pt", 4, age=0)
    (tmp_path / "checkpoint_last-x.pt").write_bytes(b"half")
    assert find_intact(tmp_path, suffix="-x") == tmp_path / "checkpoint_1_3-x.pt"


@pytest.mark.parametrize("trainer", [SimpleNamespace(), MagicMock()], ids=["partial", "mock"])
def test_a_program_of_ones_own_may_hand_over_what_it_likes(trainer):
    cfg = SimpleNamespace(restore_file="x.pt")
    assert _begin(lambda *args, **kwargs: (args, kwargs), cfg, trainer, x=1) == ((cfg, trainer), {"x": 1})


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
