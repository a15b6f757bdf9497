import subprocess
import sys

import demo_corpus
import pytest


def read(folder, name):
    return (folder / name).read_bytes().decode("utf-8").split("\n")[:-1]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "corpus"
    assert (
        demo_corpus.main(["--destdir", str(folder), "--train", "1500", "--valid", "100", "--test", "100"])
        == 0
    )
    return folder


def test_sizes(corpus):
    for split, size in (("train", 1500), ("valid", 100), ("test", 100)):
        assert len(read(corpus, f"{split}.en")) == len(read(corpus, f"{split}.de")) == size
    assert not list(corpus.glob("*.tmp"))


@pytest.mark.parametrize("language", ["en", "de"])
def test_no_sentence_occurs_twice_in_all_of_the_corpus(corpus, language):
    sentences = [line for split in ("train", "valid", "test") for line in read(corpus, f"{split}.{language}")]
    assert len(set(sentences)) == len(sentences)


def test_held_out_sentences_do_not_depend_on_the_training_size(corpus, tmp_path):
    demo_corpus.main(["--destdir", str(tmp_path), "--train", "10", "--valid", "100", "--test", "100"])
    for name in ("test.en", "test.de", "valid.en", "valid.de"):
        assert (tmp_path / name).read_bytes() == (corpus / name).read_bytes()
    assert read(tmp_path, "train.de") == read(corpus, "train.de")[:10]


def test_another_seed_gives_another_corpus(corpus, tmp_path):
    sizes = ["--train", "1500", "--valid", "100", "--test", "100"]
    demo_corpus.main(["--destdir", str(tmp_path / "same"), "--seed", "1", *sizes])
    demo_corpus.main(["--destdir", str(tmp_path / "other"), "--seed", "2", *sizes])
    assert (tmp_path / "same" / "train.de").read_bytes() == (corpus / "train.de").read_bytes()
    assert (tmp_path / "other" / "train.de").read_bytes() != (corpus / "train.de").read_bytes()


def test_more_sentences_than_the_grammar_makes(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo_corpus, "english_sentence", lambda sentence: "Again.")
    assert demo_corpus.main(["--destdir", str(tmp_path), "--train", "5", "--valid", "1", "--test", "1"]) == 1
    assert "does not make 7 different sentences" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    options = ["--train", "1", "--valid", "1", "--test", "1"]
    assert demo_corpus.main(["--destdir", str(tmp_path / "file" / "below"), *options]) == 1
    assert "cannot write to" in capsys.readouterr().err


def test_runs_as_a_module(tmp_path):
    command = [
        sys.executable,
        "-m",
        "demo_corpus",
        "--destdir",
        str(tmp_path),
        "--train",
        "0",
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert "must be at least 1" in result.stderr and "Traceback" not in result.stderr
