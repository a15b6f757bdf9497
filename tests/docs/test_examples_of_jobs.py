"""Examples in the docstrings of commands, jobs and example programs."""

import doctest
from importlib import import_module

import pytest

MODULES = [
    "demo_corpus",
    "luna_fairseq.commands.arguments",
    "luna_fairseq.masked_lm.finetuning.settings",
    "luna_fairseq.translation.plot_alignments",
    "luna_fairseq.translation.scores",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    failed, tried = doctest.testmod(import_module(name))
    assert tried and not failed
