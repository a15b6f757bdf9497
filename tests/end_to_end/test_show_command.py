"""``luna-show`` and ``attention_maps`` on checkpoints of fairseq-train, and ``luna-report``."""

import logging
import os
import shutil
import warnings

import pytest
import sentencepiece
import torch

from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaModel
from luna_fairseq.report import show, training
from luna_fairseq.report.attention import attention_maps
from luna_fairseq.report.loading import load


@pytest.fixture
def run(capsys):
    """Function that runs the ``main`` of a command, and returns its status and its output."""

    def run(main, *words):
        with warnings.catch_warnings():
            status = main(list(map(str, words)))
        captured = capsys.readouterr()
        return status, captured.out if status == 0 else captured.err

    yield run
    logging.disable(logging.NOTSET)


def test_a_translation_checkpoint(run, trained, tmp_path):
    out = tmp_path / "attention.html"
    status, printed = run(show.main, trained / "checkpoint_best.pt", "--text", "w1 w2 w3", "--out", out)
    assert status == 0, printed
    assert printed.startswith("source: w1 w2 w3\ntranslation: ")
    text = out.read_text(encoding="utf-8")
    assert all(f'"name":"{name}"' in text for name in ("encoder.1.self", "decoder.0.self", "decoder.0.cross"))


def test_the_dictionaries_of_shards_are_found(trained, data, tmp_path):
    state = torch.load(str(trained / "checkpoint_best.pt"))
    state["cfg"]["task"]["data"] = f"{data}:{tmp_path}"
    torch.save(state, str(tmp_path / "checkpoint_best.pt"))
    assert len(load(tmp_path / "checkpoint_best.pt").encode("w1 w2 w3")) == 4


def test_the_encoding_above_shards_is_found(trained, data, corpus, tmp_path):
    shards = [tmp_path / "prepared" / f"shard{number}" for number in range(2)]
    shutil.copytree(str(data), str(shards[0]))
    learn_encoding(corpus, shards[0].parent)
    state = torch.load(str(trained / "checkpoint_best.pt"))
    state["cfg"]["task"]["data"] = os.pathsep.join(map(str, shards))
    torch.save(state, str(tmp_path / "checkpoint_best.pt"))
    with pytest.raises(InputError, match="tokenizer .*dictionary"):  # found, and compared
        load(tmp_path / "checkpoint_best.pt")


def learn_encoding(corpus, folder):
    with (folder / "sentencepiece.bpe.model").open("wb") as file:
        lines = (corpus / "train.src").read_text(encoding="utf-8").splitlines()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=24
        )


def test_the_encoding_beside_the_checkpoint_is_compared(run, trained, corpus, tmp_path):
    shutil.copy(str(trained / "checkpoint_best.pt"), str(tmp_path))
    learn_encoding(corpus, tmp_path)
    with pytest.raises(InputError, match="tokenizer .*dictionary"):
        load(tmp_path / "checkpoint_best.pt")


def test_from_python(trained, data):
    model = LunaModel.from_pretrained(str(trained), "checkpoint_best.pt", str(data))
    maps = attention_maps(model, "w1 w2 w3", target="w3 w2 w1")
    assert maps["encoder.0.self.pack"].shape == (2, 4, 4) and maps["decoder.0.cross.read"].shape == (2, 4, 4)
    assert torch.allclose(maps["decoder.0.cross.read"].sum(-1), torch.ones(2, 4), atol=1e-5)


def test_what_cannot_be_shown_is_one_line(run, trained, tmp_path):
    (tmp_path / "broken.pt").write_bytes(b"PK\x03\x04 and nothing more")
    for words, message in (
        ((tmp_path / "broken.pt", "--text", "w1"), "broken.pt cannot be read"),
        ((trained / "checkpoint_best.pt", "--text", "w1", "--data", tmp_path / "nowhere"), "Give --data"),
        ((trained / "checkpoint_best.pt", "--text", " "), "empty text"),
    ):
        status, printed = run(show.main, *words, "--out", tmp_path / "page.html")
        assert status == 1 and message in printed and printed.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_a_report_of_the_run(run, trained, tmp_path):
    status, printed = run(training.main, trained, "--out", tmp_path / "report.html")
    assert status == 0 and "1 runs" in printed
    assert '"12"' in (tmp_path / "report.html").read_text(encoding="utf-8")
