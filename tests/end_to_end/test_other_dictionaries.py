"""A checkpoint is refused if the data has another dictionary of the same size."""

import pytest
from commands import plugin, refused
from reversal import AUTHORS_COMMAND, SENTENCES, preprocess, write_corpus

from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaModel

GENERATE = "-s src -t tgt --batch-size 8 --beam 1 --cpu"
MESSAGE = "was trained with another source dictionary (24 entries, "


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Data folder with the same words in another order of frequency."""
    folder = tmp_path_factory.mktemp("other")
    write_corpus(folder, SENTENCES, seed=7)
    return preprocess(folder)


def test_generating(trained, other):
    assert MESSAGE in refused("generate", *plugin(other), "--path", trained / "checkpoint_best.pt", GENERATE)


@pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model"])
def test_training_on(option, trained, other, tmp_path):
    words = (AUTHORS_COMMAND, "--max-update 20", option, trained / "checkpoint_last.pt")
    assert MESSAGE in refused("train", *plugin(other), *words, "--save-dir", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_from_python(trained, data, other):
    LunaModel.from_pretrained(str(trained), "checkpoint_last.pt", str(data))
    with pytest.raises(InputError, match="source dictionary"):
        LunaModel.from_pretrained(str(trained), "checkpoint_last.pt", str(other))
