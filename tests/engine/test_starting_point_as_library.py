"""The checkpoint from which a run continues. Files of the user are kept, and a copy is complete or absent."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from omegaconf import OmegaConf

from fairseq.file_io import PathManager
from fairseq.trainer import Trainer
from luna_fairseq.engine.checkpoint_contents import _load_and_compare
from luna_fairseq.engine.early_stopping import has_run_out_of_patience
from luna_fairseq.engine.starting_point import _choose_checkpoint, _start_training
from luna_fairseq.files.checkpoints import find_intact


def write(path, updates, age, cfg=None, **torch_options):
    state = {
        "model": {"w": torch.full((50,), float(updates))},
        "optimizer_history": [{"num_updates": updates}],
        "last_optimizer_state": {},
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": updates}},
        "cfg": cfg,
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


@pytest.fixture
def interrupted(tmp_path):
    """Return a function that builds the configuration of a run, and the folder of such a run.

    The run has started from start.pt, and has been interrupted.
    """

    def build(**settings):
        checkpoint = {
            **{"restore_file": "start.pt", "reset_optimizer": True, "reset_lr_scheduler": False},
            **{"reset_meters": False, "reset_dataloader": False, "save_dir": str(tmp_path)},
            **{"checkpoint_suffix": "", "no_last_checkpoints": False, "finetune_from_model": None},
        }
        schedule = {"_name": "cosine", "warmup_updates": 0, "max_update": "${optimization.max_update}"}
        cfg = {"optimization": {"max_update": 9}, "optimizer": {"_name": "adam"}, "lr_scheduler": schedule}
        return OmegaConf.merge({**cfg, "checkpoint": checkpoint}, settings)

    cfg = OmegaConf.to_container(build(), resolve=True)
    write(tmp_path / "checkpoint_1_3.pt", 3, age=30, cfg=cfg)
    write(tmp_path / "checkpoint_2_5.pt", 5, age=10, cfg=cfg)
    write(tmp_path / "checkpoint_last.pt", 5, age=9, cfg=cfg)
    (tmp_path / "start.pt").touch()
    return tmp_path, build


def choose(cfg):
    """Return the name of the checkpoint from which a run with this configuration starts, and its resets."""
    trainer = SimpleNamespace(checkpoint_suffix="", data_parallel_rank=0, data_parallel_world_size=1, cfg=cfg)
    chosen = _choose_checkpoint(cfg.checkpoint, trainer)
    return Path(chosen.restore_file).name, chosen.reset_optimizer


@pytest.mark.parametrize("restore_file", ["start.pt", "checkpoint_last.pt"])
@pytest.mark.parametrize("spoil", [halve, flip])
def test_a_repeated_command_resumes_from_an_intact_file(spoil, restore_file, interrupted, caplog):
    folder, build = interrupted
    cfg = build(checkpoint={"restore_file": restore_file})
    for name, updates, age in (("checkpoint_2_5.pt", 5, 10), ("checkpoint_last.pt", 5, 9)):
        write(folder / name, updates, age, cfg=OmegaConf.to_container(cfg, resolve=True))
    assert choose(cfg) == ("checkpoint_last.pt", False)
    caplog.clear()
    spoil(folder / "checkpoint_last.pt", 9)
    assert choose(cfg) == ("checkpoint_2_5.pt", False)
    assert messages(caplog)[0].startswith(f"training resumes from {folder / 'checkpoint_2_5.pt'}, which")


def test_another_start_than_that_of_the_intact_file(interrupted, caplog):
    folder, build = interrupted
    flip(folder / "checkpoint_last.pt", 9)
    assert choose(build(optimizer={"lr": 1})) == ("start.pt", True) and not caplog.records
    for path in folder.glob("checkpoint_?_?.pt"):
        halve(path, 5)
    assert choose(build()) == ("start.pt", True)


@pytest.mark.parametrize(
    "settings, chosen",
    [
        ({"optimization": {"max_update": 20}}, "checkpoint_last.pt"),
        ({"optimization": {"max_update": 0}}, "checkpoint_last.pt"),
        ({"lr_scheduler": {"max_update": 20}}, "start.pt"),
        ({"lr_scheduler": {"warmup_updates": 4}}, "start.pt"),
    ],
)
def test_a_repeated_command_may_have_another_max_update(settings, chosen, interrupted):
    """Schedules copy --max-update, unless they have a limit of their own."""
    assert choose(interrupted[1](**settings))[0] == chosen


@pytest.mark.parametrize("updates, hours", [(0, 0), (5, 9)])
def test_a_new_run_does_not_count_the_time_of_another_one(updates, hours):
    """--stop-time-hours limits the time of a run, of which --reset-optimizer begins a new one."""

    def load(trainer, filename):
        trainer._previous_training_time = 9

    trainer = SimpleNamespace(
        cfg=SimpleNamespace(ema=SimpleNamespace(store_ema=False)), get_num_updates=lambda: updates
    )
    _load_and_compare(load, trainer, "x.pt")
    assert trainer._previous_training_time == hours


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
