"""A --user-dir with an attention, an option and a model of its own: examples/own_attention."""

from pathlib import Path

import pytest
from commands import TINY, lines, refused, succeed
from reversal import preprocess, write_corpus

CODE = Path(__file__).parents[2] / "examples" / "own_attention"
TRAINING = f"""
    -s src -t tgt --arch luna_temperature {TINY} --projection-length 4 --share-all-embeddings
    --optimizer adam --lr 0.003 --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --batch-size 8 --num-workers 0 --log-format simple
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    write_corpus(folder, {"train": 40, "valid": 8, "test": 6})
    return folder, CODE, preprocess(folder)


def test_a_model_with_an_attention_and_an_option_of_its_own_trains_and_translates(world):
    folder, code, data = world
    run = ("--user-dir", code, data, "-s src -t tgt")
    succeed("train", "--user-dir", code, data, TRAINING, "--max-update 4 --save-dir", folder / "run")
    output = succeed("generate", *run, "--path", folder / "run" / "checkpoint_last.pt")
    assert len(lines(output, "H")) == 6
    checkpoint = folder / "run" / "checkpoint_last.pt"
    warm = succeed("generate", *run, "--path", checkpoint, "--model-overrides {'temperature':100.0}")
    assert lines(warm, "H") != lines(output, "H")


def test_its_option_has_bounds(world):
    folder, code, data = world
    said = refused("train", "--user-dir", code, data, TRAINING, "--temperature 0 --save-dir", folder / "bad")
    assert "--temperature" in said and "0" in said
