"""What a checkpoint was trained as, against what it is used for."""

from argparse import Namespace

import pytest

from fairseq.tasks import TASK_REGISTRY
from luna_fairseq.engine.same_training import check_identity, identity_of, stored_identity
from luna_fairseq.errors import InputError
from luna_fairseq.lra.task import LRAImageConfig, LRAImageTask

EN_DE = {"task": "translation", "source_lang": "en", "target_lang": "de"}
MANY = {"task": "multilingual_translation", "encoder_langtok": None}
GLUE = {"task": "sentence_prediction"}
LANGTOK = {"source_lang": "de", "target_lang": "en", "encoder_langtok": "src"}


@pytest.mark.parametrize(
    "stored, ours, message",
    [
        (EN_DE, {**EN_DE, "source_lang": "de", "target_lang": "en"}, "not de to en: give -s en -t de"),
        (EN_DE, {**EN_DE, "target_lang": "fr"}, "to translate en to de, not en to fr"),
        (EN_DE, {"task": "a_task_of_somebody", "target_lang": "en"}, "en to de, not . to en"),
        (EN_DE, {**EN_DE, "task": "translation_from_pretrained_bart"}, None),
        (EN_DE, {"task": "translation"}, None),  # the task does not say
        ({}, EN_DE, None),  # the checkpoint does not say
        (EN_DE, {"task": "masked_lm"}, "for translation, not for masked language modelling: give"),
        ({"task": "masked_lm"}, {"task": "language_modeling"}, "for masked .*, not for language modelling"),
        ({"task": "lra-text"}, {"task": "lra-image"}, "for classifying sequences .*, not for .* images"),
        ({"task": "lra-text"}, {"task": "long_range_arena"}, None),
        (GLUE, {"task": "sentence_ranking"}, "not for sentence ranking"),
        ({**GLUE, "init_token": 0}, {**GLUE, "init_token": None}, "with --init-token 0, which is None here"),
        (MANY, {**MANY, "source_lang": "de", "target_lang": "en"}, None),
        (MANY, {**MANY, **LANGTOK}, "with --encoder-langtok None, which is src here"),
    ],
)  # fmt: skip
def test_what_goes_together(stored, ours, message):
    if message is None:
        return check_identity("x.pt", stored, ours)
    with pytest.raises(InputError, match=f"^x.pt was trained .*{message}"):
        check_identity("x.pt", stored, ours)


def test_what_a_task_and_a_checkpoint_say():
    task = LRAImageTask(LRAImageConfig(data="here", pixel_normalization=[0.5, 0.25]))
    identity = {"task": "lra-image", "pixel_normalization": [0.5, 0.25]}
    assert identity_of(task) == identity and "lra-image" in TASK_REGISTRY
    assert stored_identity({"cfg": {"task": {"_name": "lra-image", **identity}}}) == identity
    assert stored_identity({"args": Namespace(task="translation", source_lang="en")})["source_lang"] == "en"
    assert stored_identity({"extra_state": {"luna_fairseq.training": EN_DE}, "cfg": {"task": {}}}) == EN_DE
    assert stored_identity({}) == {"task": None}
