"""A small corpus and one model trained on it, shared by all tests here."""

import pytest
from commands import plugin, succeed
from copying import preprocess as preprocess_text
from copying import write_text
from reversal import AUTHORS_COMMAND, SENTENCES, preprocess, write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Folder of the text."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, SENTENCES)
    return folder


@pytest.fixture(scope="session")
def data(corpus):
    """Folder of the binarised corpus."""
    return preprocess(corpus)


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """Folder of a binarised text of one language."""
    folder = tmp_path_factory.mktemp("text")
    write_text(folder)
    return preprocess_text(folder, folder / "bin")


@pytest.fixture(scope="session")
def trained(data, tmp_path_factory):
    """Folder of a run of 12 updates: checkpoints of its epochs, checkpoint_last.pt, checkpoint_best.pt, its
    log."""
    folder = tmp_path_factory.mktemp("trained")
    log = succeed("train", *plugin(data), AUTHORS_COMMAND, "--max-update 12", "--save-dir", folder)
    (folder / "log").write_text(log, encoding="utf-8")
    return folder
