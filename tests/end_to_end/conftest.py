"""Fixtures of the end-to-end tests: a small corpus and one model trained on it."""

import pytest
from commands import plugin, succeed
from copying import preprocess as preprocess_text
from copying import write_text
from reversal import AUTHORS_COMMAND, SENTENCES, preprocess, write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Folder of a small parallel text."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, SENTENCES)
    return folder


@pytest.fixture(scope="session")
def data(corpus):
    """Folder of the binarised parallel text."""
    return preprocess(corpus)


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """Folder of a small binarised monolingual text."""
    folder = tmp_path_factory.mktemp("text")
    write_text(folder)
    return preprocess_text(folder, folder / "bin")


@pytest.fixture(scope="session")
def trained(data, tmp_path_factory):
    """Folder of a training run of 12 updates, with its checkpoints and its log."""
    folder = tmp_path_factory.mktemp("trained")
    log = succeed("train", *plugin(data), AUTHORS_COMMAND, "--max-update 12", "--save-dir", folder)
    (folder / "log").write_text(log, encoding="utf-8")
    return folder
