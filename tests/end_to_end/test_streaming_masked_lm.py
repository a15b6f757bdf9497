"""A tiny masked language model that carries P through contiguous text, through fairseq's commands."""

import re

import pytest
from commands import plugin, refused, succeed
from copying import ADAM, MODEL
from saved_training import assert_same_training, load

from luna_fairseq.masked_lm import context_use

TRAIN = f"--task streaming_masked_lm --criterion masked_lm -a luna_bert {MODEL} {ADAM} --batch-size 4"
TRAIN += " --carry-packed --segment-length 16 --no-epoch-checkpoints --save-interval-updates 3"


@pytest.fixture(scope="module")
def data(text):
    return plugin(text)


@pytest.mark.parametrize("segments", ["1", "0"])
def test_a_run_that_was_resumed_within_the_text_equals_a_straight_one(data, tmp_path, segments, capsys):
    train = f"{TRAIN} --bptt-segments {segments}"
    succeed("train", *data, train, "--max-update 5 --save-dir", tmp_path / "straight")
    succeed("train", *data, train, "--max-update 3 --save-dir", tmp_path / "resumed")
    kept = load(tmp_path / "resumed/checkpoint_last.pt")["extra_state"]["train_iterator"]["stream"]
    assert kept["state"]["packed"].shape == (8, 4, 32)
    succeed("train", *data, train, "--max-update 5 --save-dir", tmp_path / "resumed")
    assert_same_training(*(load(tmp_path / run / "checkpoint_last.pt") for run in ("straight", "resumed")))
    words = "--task streaming_masked_lm --batch-size 4 --path", tmp_path / "resumed/checkpoint_last.pt"
    checked = succeed("validate", *data, *words)
    assert re.search(r"valid on 'valid' subset.* ppl", checked)
    assert context_use.main([str(data[-1]), "--path", str(words[-1])]) == 1
    assert "here every sequence stands for itself" in capsys.readouterr().err
    line = refused(
        "train", *data, train, "--segment-length 8 --max-update 6 --save-dir", tmp_path / "resumed"
    )
    assert "was trained with --segment-length 16, this run has --segment-length 8" in line


@pytest.mark.parametrize(
    "words, message",
    [
        ("--segment-length 65", "the task's sequences have up to 65 tokens, the model has 64 positions"),
        ("--mask-whole-words", "--mask-whole-words"),
        ("--segment-length 8", "is for models that carry P"),
    ],
)
def test_what_cannot_be(data, tmp_path, words, message):
    train = TRAIN.replace(" --carry-packed", "") if "carry" in message else TRAIN
    assert message in refused("train", *data, train, words, "--max-update 1 --save-dir", tmp_path)
