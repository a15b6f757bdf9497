"""A checkpoint names the dictionaries it was trained with, and is loaded with no others."""

import logging
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from omegaconf import OmegaConf

from fairseq.data import Dictionary, TruncatedDictionary
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.fairseq_task import LegacyFairseqTask
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from luna_fairseq.checks.same_training import check_fingerprints, fingerprint, fingerprints_of, is_known
from luna_fairseq.engine import checkpoint_contents
from luna_fairseq.errors import InputError


def dictionary(words):
    made = Dictionary()
    for word in words.split():
        made.add_symbol(word)
    return made


def test_order_and_symbols_count_and_frequencies_do_not():
    abc, again, moved, other = map(dictionary, ("a b c", "a b c c", "a c b", "a b d"))
    assert fingerprint(abc) == fingerprint(again)
    assert len({fingerprint(one) for one in (abc, moved, other, dictionary("a bc"), dictionary("ab c"))}) == 5
    assert fingerprint(abc).startswith("7 entries, ")


def test_a_language_models_shorter_output_dictionary():
    assert fingerprint(TruncatedDictionary(dictionary("a b c"), 5)) == fingerprint(dictionary("a"))


def test_what_a_task_has():
    a, b = dictionary("a"), dictionary("b")
    task = SimpleNamespace(source_dictionary=a, target_dictionary=None, label_dictionary=b)
    assert fingerprints_of(task) == {"source": fingerprint(a), "label": fingerprint(b)}
    assert fingerprints_of(LegacyFairseqTask(None)) == {}


def test_of_every_task_of_this_package_the_dictionaries_are_kept_and_compared():
    ours = [name for name, task in TASK_REGISTRY.items() if task.__module__.startswith("luna_fairseq.")]
    assert {"streaming_lm", "lra-text"} <= {*ours}
    assert not [name for name in ours if not is_known({"task": name})]


def saved(task, **state):
    """What a trainer of this task keeps in a checkpoint."""
    trainer, kept = SimpleNamespace(task=task), {"task_state": {"dictionaries": ["HuBERT's own"]}, **state}
    checkpoint_contents._save_identity(
        lambda self, name, extra: kept.update(extra_state=extra), trainer, "x.pt", {}
    )
    return kept


def loaded(state, task):
    """What the task is handed of it."""
    state.setdefault("cfg", OmegaConf.create({"task": {"_name": "translation"}}))
    state = checkpoint_contents._load_and_check(lambda path, overrides: state, "x.pt")
    return checkpoint_contents._compare_in_use(lambda self, found: found, task, state.get("task_state", {}))


def test_it_acts_for_tasks_that_it_knows_and_under_a_key_of_its_own():
    ab, cd = (
        TranslationTask(TranslationConfig(), dictionary(words), dictionary(words)) for words in ("a b", "c d")
    )
    assert loaded(saved(ab), ab) == {"dictionaries": ["HuBERT's own"]}
    with pytest.raises(InputError, match="another source dictionary"):
        loaded(saved(ab), cd)
    for task in (LegacyFairseqTask(None), MagicMock(spec=MultilingualTranslationTask)):
        assert "luna_fairseq.dictionaries" not in saved(task)["extra_state"]
        assert loaded(saved(ab), task) == loaded(saved(task), ab) == {"dictionaries": ["HuBERT's own"]}


@pytest.mark.parametrize("model, said", [("luna_base", 1), ("transformer", 0)])
def test_what_fairseq_alone_wrote_is_left_alone(model, said, caplog):
    task = TranslationTask(TranslationConfig(), dictionary("a"), dictionary("a"))
    with caplog.at_level(logging.WARNING):
        loaded({"cfg": OmegaConf.create({"model": {"_name": model}, "task": {"_name": "translation"}})}, task)
    assert len(caplog.records) == said


def test_checkpoints_of_version_0_1(caplog):
    task = TranslationTask(TranslationConfig(), dictionary("a"), dictionary("a"))
    state = {"extra_state": {"dictionaries": fingerprints_of(task)}}
    loaded(state, task)
    state["extra_state"]["dictionaries"]["source"] = "5 entries, 0"
    with pytest.raises(InputError, match="another source dictionary"):
        loaded(state, task)


def test_another_one_is_refused_and_none_is_said(caplog):
    ours = {"source": fingerprint(dictionary("a b")), "target": fingerprint(dictionary("c"))}
    check_fingerprints("x.pt", {"source": ours["source"], "label": "2 entries, 0"}, ours)
    assert not caplog.records
    with pytest.raises(
        InputError, match=r"^x.pt was trained with another source dictionary \(6 entries, 0\)"
    ):
        check_fingerprints("x.pt", {"source": "6 entries, 0"}, ours)
    check_fingerprints("x.pt", {"source": "6 entries, 0"}, ours, left_out=["source"])
    with caplog.at_level(logging.WARNING):
        check_fingerprints("x.pt", None, ours)
    (record,) = caplog.records
    assert record.getMessage().startswith("x.pt does not say which dictionaries it was trained with")
