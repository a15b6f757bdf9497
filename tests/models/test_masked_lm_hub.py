"""The interface of a trained masked language model: the authors' checkpoints, and tokenizers that do not
belong."""

import json
from argparse import Namespace

import golden
import pytest
import torch
from tiny_luna import dictionary

from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaMaskedLM
from luna_fairseq.models.tokenizers import find_tokenizer
from luna_fairseq.text.pieces import check_tokenizer

WORDS = [f"w{i}" for i in range(45)]
# What that fairseq stores of the command line beside the model's options.
OPTIONS = {
    "task": "masked_lm",
    "arch": "luna_base_512",
    "criterion": "masked_lm",
    "optimizer": "adam",
    "lr": [0.0006],
    "lr_scheduler": "polynomial_decay",
    "clip_norm": 1.0,
    "max_sentences": 16,
    "max_tokens": None,
    "max_update": 250000,
    "find_unused_parameters": True,
}


@pytest.fixture(scope="module")
def vectors():
    return golden.load("luna_bert_tied")["variants"]["dynproj"]


@pytest.fixture(scope="module")
def hub(vectors, tmp_path_factory):
    """A checkpoint as the authors' code writes it, loaded."""
    folder = tmp_path_factory.mktemp("authors")
    (folder / "dict.txt").write_text("".join(f"{word} 1\n" for word in WORDS), encoding="utf-8")
    options = {**vectors["args"], **dict.fromkeys(vectors["args_none"]), **OPTIONS, "data": str(folder)}
    history = {"criterion_name": "MaskedLmLoss", "optimizer_name": "FairseqAdam", "num_updates": 250000}
    checkpoint = {
        "args": Namespace(**options),
        "model": vectors["state_dict"],
        "optimizer_history": [{**history, "lr_scheduler_state": {"best": None}}],
        "extra_state": {"train_iterator": {"epoch": 5, "iterations_in_epoch": 0, "shuffle": True}},
        "last_optimizer_state": None,
    }
    torch.save(checkpoint, str(folder / "authors.pt"), _use_new_zipfile_serialization=False)
    return LunaMaskedLM.from_pretrained(str(folder), "authors.pt")


def test_the_authors_checkpoint(hub, vectors):
    case = vectors["cases"]["pad"]
    tokens, expected = case["inputs"]["src_tokens"], case["f32"]
    with torch.no_grad():
        features, packed, mask = hub.extract_features(tokens, return_packed=True)
        golden.assert_close(features, expected["outputs"]["features"], "f32")
        golden.assert_close(packed, expected["outputs"]["packed_features"], "f32")
        assert torch.equal(mask, expected["outputs"]["px_padding_mask"])
        for name, head in expected["heads"].items():
            golden.assert_close(hub.predict(name, tokens, return_logits=True), head["logits"], "f32")
        sentences = [row[row.ne(1)] for row in tokens]
        golden.assert_close(hub.sentence_embedding(sentences), hub.sentence_embedding(tokens), "f32")
    text = hub.decode(tokens[1])
    assert text == f"{WORDS[14]} {WORDS[38]}" and torch.equal(hub.encode(text), sentences[1])
    with pytest.raises(InputError, match=r"one sentence \[T\], not a tensor of shape \(3, 10\)"):
        hub.decode(tokens)


class Pieces:
    """As much of a tokenizer as is looked at."""

    def __init__(self, pieces):
        self.pieces = pieces
        self.sp = self

    def get_piece_size(self):
        return len(self.pieces)

    def id_to_piece(self, index):
        return self.pieces[index]


def test_a_tokenizer_of_another_vocabulary_is_refused():
    ours = dictionary(100)
    pieces = ["<unk>", "<s>", "</s>", "<sep>", *(f"w{i}" for i in range(95))]
    ours.pad_to_multiple_(8)
    ours.add_symbol("<mask>")
    check_tokenizer(Pieces(pieces), ours)
    check_tokenizer(Pieces([*pieces, "seldom"]), ours)
    with pytest.raises(
        InputError, match="tokenizer .* is not the one of the dictionary .*: for example 'w94' is no piece"
    ):
        check_tokenizer(Pieces(pieces[:-1]), ours)
    with pytest.raises(
        InputError, match=r"tokenizer \(199 pieces\) .* \(95 symbols\): it has many more pieces"
    ):
        check_tokenizer(Pieces([*pieces, *(f"x{i}" for i in range(100))]), ours)
    check_tokenizer(None, ours)
    # For fairseq-interactive a dictionary may be of the frequent pieces alone, and have some symbols more.
    check_tokenizer(Pieces([*pieces[:-9], *(f"x{i}" for i in range(100))]), ours, strict=False)
    with pytest.raises(InputError, match="for example 'w85' is no piece"):
        check_tokenizer(Pieces(pieces[:-10]), ours, strict=False)


def test_tokenizers_are_found_by_their_files(tmp_path):
    assert find_tokenizer([tmp_path]) == {}
    (tmp_path / "vocab.bpe").write_text("#version\n", encoding="utf-8")
    (tmp_path / "encoder.json").write_text(json.dumps({"a": 0}), encoding="utf-8")
    assert find_tokenizer([tmp_path / "nowhere", tmp_path])["gpt2_vocab_bpe"] == str(tmp_path / "vocab.bpe")
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"")
    assert find_tokenizer([tmp_path])["bpe"] == "sentencepiece"
