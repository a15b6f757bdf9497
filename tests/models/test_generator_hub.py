"""The Python interface of translation and causal language models, on small models."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "huggingface"))

from checkpoints import save  # noqa: E402

from luna_fairseq.models import LunaLanguageModel, LunaModel  # noqa: E402

MODELS = {"translation": LunaModel, "causal LM": LunaLanguageModel}


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Function that loads a small model of a kind with options of ``from_pretrained``."""
    folders = {}

    def loaded(kind="translation", **options):
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp("saved")
            save(kind, "tied", folders[kind])
        return MODELS[kind].from_pretrained(
            str(folders[kind]), "model.pt", str(folders[kind] / "data"), **options
        )

    return loaded


@pytest.mark.parametrize("kind", MODELS)
def test_a_sentence_may_be_longer_than_the_batches_of_the_training(kind, load):
    texts = ["w1 w2", "w3 " * 12]
    expected, found = (load(kind, max_tokens=size).sample(texts, max_len_b=20) for size in (None, 5))
    assert found == expected
