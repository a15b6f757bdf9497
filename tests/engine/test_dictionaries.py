"""A checkpoint names the dictionaries it was trained with, and is loaded with no others."""

import logging
from types import SimpleNamespace

import pytest

from fairseq.data import Dictionary, TruncatedDictionary
from fairseq.tasks.fairseq_task import LegacyFairseqTask
from luna_fairseq.engine.dictionaries import check_fingerprints, fingerprint, fingerprints_of
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
