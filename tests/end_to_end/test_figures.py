"""What --tensorboard-logdir carries besides fairseq's own figures, and that training is the same with it."""

import re

import pytest
from commands import plugin, succeed
from reversal import AUTHORS_COMMAND
from saved_training import assert_same_training, load

from luna_fairseq.report.logs import read_logs


@pytest.fixture(scope="module")
def told(data, tmp_path_factory):
    """Folder and log of a run as ``trained`` that was asked for the figures."""
    folder = tmp_path_factory.mktemp("told")
    words = ("--max-update 12 --tensorboard-logdir", folder / "tensorboard", "--save-dir", folder)
    (folder / "train.log").write_text(
        succeed("train", *plugin(data), AUTHORS_COMMAND, *words), encoding="utf-8"
    )
    return folder


def test_they_are_written(told):
    assert list(told.glob("tensorboard/train_inner/events.out.tfevents.*"))


def test_clear_names_and_sensible_values(told):
    inner = read_logs([told / "train.log"]).tables["train_inner"]
    attentions = ("encoder.0.self_attn", "encoder.1.self_attn", "decoder.0.encoder_attn")
    names = {f"luna/pack_{figure}/{place}" for figure in ("entropy", "coverage") for place in attentions}
    names |= {f"apollo/{figure}" for figure in ("curvature_mean", "curvature_largest", "share_rebounding")}
    assert {name for name in inner if "/" in name} == names
    for name in names:
        assert len(inner[name]) == 12 and (inner[name] >= 0).all(), name
        assert "curvature" in name or (inner[name] <= 1 + 1e-4).all(), name


def test_training_is_the_same_with_them_and_says_nothing_without(told, trained):
    assert not re.search("luna/|apollo/", (trained / "log").read_text(encoding="utf-8"))
    assert_same_training(load(told / "checkpoint_last.pt"), load(trained / "checkpoint_last.pt"))
