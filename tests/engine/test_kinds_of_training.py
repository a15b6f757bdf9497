"""A checkpoint is used only for the task and direction of its training."""

from argparse import Namespace
from types import SimpleNamespace

import pytest

from fairseq.tasks import TASK_REGISTRY
from luna_fairseq.checks.same_training import (
    check_identity,
    compare_with_run,
    stored_identity,
    task_identity,
)
from luna_fairseq.errors import InputError
from luna_fairseq.lra.task import LRAImageConfig, LRAImageTask

EN_DE = {"task": "translation", "source_lang": "en", "target_lang": "de"}
MANY = {"task": "multilingual_translation", "encoder_langtok": None}
GLUE = {"task": "sentence_prediction"}
BOS = {"task": "language_modeling", "add_bos_token": True}
LANGTOK = {"source_lang": "de", "target_lang": "en", "encoder_langtok": "src"}


@pytest.mark.parametrize(
    "stored, ours, message",
    [
        (EN_DE, {**EN_DE, "source_lang": "de", "target_lang": "en"}, "not de to en. Give -s en -t de"),
        (EN_DE, {**EN_DE, "target_lang": "fr"}, "to translate en to de, not en to fr"),
        (EN_DE, {"task": "a_task_of_somebody", "target_lang": "en"}, "en to de, not . to en"),
        (EN_DE, {**EN_DE, "task": "translation_from_pretrained_bart"}, None),
        (EN_DE, {"task": "translation"}, None),  # the task names no languages
        ({}, EN_DE, None),  # the checkpoint names nothing
        (EN_DE, {"task": "masked_lm"}, "for translation, not for masked language modelling. Give"),
        ({"task": "masked_lm"}, {"task": "language_modeling"}, "for masked .*, not for language modelling"),
        ({"task": "lra-text"}, {"task": "lra-image"}, "for classifying sequences .*, not for .* images"),
        ({"task": "lra-text"}, {"task": "long_range_arena"}, None),
        (GLUE, {"task": "sentence_ranking"}, "not for sentence ranking"),
        ({**GLUE, "init_token": 0}, {**GLUE, "init_token": None}, "--init-token 0, but .* uses no --init-"),
        (BOS, {**BOS, "add_bos_token": False}, "--add-bos-token, but .* no --add-bos-token. Give --add-bos"),
        (MANY, {**MANY, "source_lang": "de", "target_lang": "en"}, None),
        (MANY, {**MANY, **LANGTOK}, "with no --encoder-langtok, but this command uses --encoder-langtok src"),
    ],
)  # fmt: skip
def test_identities_agree_or_are_refused(stored, ours, message):
    if message is None:
        return check_identity("x.pt", stored, ours)
    with pytest.raises(InputError, match=f"x.pt .*{message}"):
        check_identity("x.pt", stored, ours)


def test_identity_of_a_task_and_of_a_checkpoint():
    task = LRAImageTask(LRAImageConfig(data="here", pixel_normalization=[0.5, 0.25]))
    identity = {"task": "lra-image", "pixel_normalization": [0.5, 0.25]}
    assert task_identity(task) == identity and "lra-image" in TASK_REGISTRY
    assert stored_identity({"cfg": {"task": {"_name": "lra-image", **identity}}}) == identity
    assert stored_identity({"args": Namespace(task="translation", source_lang="en")})["source_lang"] == "en"
    assert stored_identity({"extra_state": {"luna_fairseq.training": EN_DE}, "cfg": {"task": {}}}) == EN_DE
    assert stored_identity({}) == {"task": None}


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    "model", [{"arch": "fconv_iwslt_de_en"}, {"_name": "transformer", "dropout": 0.1}, {}]
)
def test_a_run_of_a_model_of_fairseq_continues(model, reset, caplog):
    trainer = SimpleNamespace(cfg=SimpleNamespace(model=Namespace(**model)), task=None)
    compare_with_run("x.pt", trainer, {**EN_DE, "run": "a"}, model, reset)
    assert getattr(trainer, "run_name", None) == (None if reset else "a") and not caplog.records


def test_missing_languages_bring_one_warning(caplog):
    for _ in range(2):
        check_identity("theirs.pt", {"task": "translation", "source_lang": None}, EN_DE)
        check_identity("ours.pt", EN_DE, EN_DE)
        check_identity("lm.pt", {"task": "masked_lm"}, {"task": "masked_lm"})
    assert [record.getMessage()[:50] for record in caplog.records] == [
        "theirs.pt does not say which languages it translat"
    ]
