"""The Python interface of a trained masked language model, on the authors' checkpoint."""

from argparse import Namespace
from functools import partial

import golden
import pytest
import tiny_masked_lm
import torch
from omegaconf import OmegaConf

from fairseq.models.roberta import RobertaModel
from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaMaskedLM
from luna_fairseq.models.masked_lm_hub import MaskedLMHub
from luna_fairseq.peers.models import PeerRoberta

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
    """Interface loaded from a checkpoint of the authors' code."""
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
    with pytest.raises(InputError, match=r"one sentence \[T\], got a tensor of shape \(3, 10\)"):
        hub.decode(tokens)


def test_examples_longer_than_the_positions_are_cut_and_counted(hub, vectors, caplog):
    head, positions = next(iter(vectors["cases"]["pad"]["f32"]["heads"])), hub.model.max_positions()
    long, short = torch.full((positions + 3,), 5), torch.full((4,), 6)
    with torch.no_grad():
        found = hub.predict(head, [long, short])
        assert "1 of 2 sentences were truncated to the model's" in caplog.text
        torch.testing.assert_close(found[:1], hub.predict(head, long[:positions]), rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="got an empty list"):
        hub.predict(head, [])


@pytest.mark.parametrize("kind", [PeerRoberta, RobertaModel])
def test_models_without_p(kind):
    options = {**tiny_masked_lm.OPTIONS, "untie_weights_roberta": False}
    model = kind.build_model(Namespace(**options), tiny_masked_lm.Task())
    hub = MaskedLMHub(OmegaConf.create({"bpe": None}), tiny_masked_lm.Task(), [model])
    hub.register_classification_head("sentiment", num_classes=3)
    sentences = [hub.encode("w1 w2 w3"), hub.encode("w4")]
    with torch.no_grad():
        found, features = hub.predict("sentiment", sentences, True), hub.extract_features(sentences)
        torch.testing.assert_close(found, model.classification_heads["sentiment"](features))
    for compute in (hub.sentence_embedding, partial(hub.extract_features, return_packed=True)):
        with pytest.raises(InputError, match=f"{kind.__name__} has no packed sequence P"):
            compute(sentences)
    with pytest.raises(InputError, match="no classification head 'topic'; its heads: sentiment"):
        hub.predict("topic", sentences)


def test_regression(hub):
    hub.register_classification_head("regression", num_classes=1)
    with torch.no_grad():
        found, logits = (hub.predict("regression", hub.encode("w1 w2"), raw) for raw in (False, True))
    assert torch.equal(found, logits) and found.abs() > 0
