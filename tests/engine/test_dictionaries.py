"""A checkpoint records the dictionaries of its training, and loads with no others."""

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
from luna_fairseq.checks.same_training import (
    check_fingerprints,
    fingerprint,
    has_known_task,
    task_fingerprints,
)
from luna_fairseq.engine import checkpoint_contents
from luna_fairseq.errors import InputError


def make_dictionary(words):
    dictionary = Dictionary()
    for word in words.split():
        dictionary.add_symbol(word)
    return dictionary


def test_fingerprints_depend_on_symbols_and_order_but_not_on_frequencies():
    abc, counted_twice, moved, other = map(make_dictionary, ("a b c", "a b c c", "a c b", "a b d"))
    assert fingerprint(abc) == fingerprint(counted_twice)
    assert (
        len(
            {
                fingerprint(each)
                for each in (abc, moved, other, make_dictionary("a bc"), make_dictionary("ab c"))
            }
        )
        == 5
    )
    assert fingerprint(abc).startswith("7 entries, ")


def test_fingerprint_of_a_truncated_output_dictionary():
    assert fingerprint(TruncatedDictionary(make_dictionary("a b c"), 5)) == fingerprint(make_dictionary("a"))


def test_fingerprints_of_a_task():
    a, b = make_dictionary("a"), make_dictionary("b")
    task = SimpleNamespace(source_dictionary=a, target_dictionary=None, label_dictionary=b)
    assert task_fingerprints(task) == {"source": fingerprint(a), "label": fingerprint(b)}
    assert task_fingerprints(LegacyFairseqTask(None)) == {}


def test_dictionaries_are_recorded_for_every_task_of_this_package():
    ours = [name for name, task in TASK_REGISTRY.items() if task.__module__.startswith("luna_fairseq.")]
    assert {"streaming_lm", "lra-text"} <= {*ours}
    assert not [name for name in ours if not has_known_task({"task": name})]


def save_state(task, **state):
    """Return the content that a trainer of ``task`` stores in a checkpoint."""
    trainer = SimpleNamespace(task=task, cfg=SimpleNamespace(ema=SimpleNamespace(store_ema=False)))
    stored = {"task_state": {"dictionaries": ["HuBERT's own"]}, **state}
    checkpoint_contents._save_with_training_info(
        lambda self, name, extra: stored.update(extra_state=extra), trainer, "x.pt", {}
    )
    return stored


def load_state(state, task):
    """Load a checkpoint for inference, and return the state that its task receives."""
    state.setdefault("cfg", OmegaConf.create({"task": {"_name": "translation"}}))
    state = checkpoint_contents._load_and_check(lambda path, overrides: state, "x.pt")
    return checkpoint_contents._compare_with_task(
        lambda self, received: received, task, state.get("task_state", {})
    )


def test_only_known_tasks_are_compared_under_a_separate_key():
    ab, cd = (
        TranslationTask(TranslationConfig(), make_dictionary(words), make_dictionary(words))
        for words in ("a b", "c d")
    )
    assert load_state(save_state(ab), ab) == {"dictionaries": ["HuBERT's own"]}
    with pytest.raises(InputError, match="source dictionary"):
        load_state(save_state(ab), cd)
    for task in (LegacyFairseqTask(None), MagicMock(spec=MultilingualTranslationTask)):
        assert "luna_fairseq.dictionaries" not in save_state(task)["extra_state"]
        assert (
            load_state(save_state(ab), task)
            == load_state(save_state(task), ab)
            == {"dictionaries": ["HuBERT's own"]}
        )


@pytest.mark.parametrize("model, warnings", [("luna_base", 1), ("transformer", 0)])
def test_checkpoints_that_fairseq_alone_wrote_load(model, warnings, caplog):
    task = TranslationTask(TranslationConfig(), make_dictionary("a"), make_dictionary("a"))
    with caplog.at_level(logging.WARNING):
        load_state(
            {"cfg": OmegaConf.create({"model": {"_name": model}, "task": {"_name": "translation"}})}, task
        )
    assert len(caplog.records) == warnings


def test_another_dictionary_is_refused_and_an_unknown_one_brings_a_warning(caplog):
    ours = {"source": fingerprint(make_dictionary("a b")), "target": fingerprint(make_dictionary("c"))}
    check_fingerprints("x.pt", {"source": ours["source"], "label": "2 entries, 0"}, ours)
    assert not caplog.records
    with pytest.raises(InputError, match=r"x.pt .*source dictionary \(6 entries, 0\)"):
        check_fingerprints("x.pt", {"source": "6 entries, 0"}, ours)
    check_fingerprints("x.pt", {"source": "6 entries, 0"}, ours, may_differ=["source"])
    with caplog.at_level(logging.WARNING):
        check_fingerprints("x.pt", None, ours)
    (record,) = caplog.records
    assert record.getMessage().startswith("x.pt does not say which dictionaries it was trained with")
