"""Examples in the docstrings of commands, jobs and example programs."""

import doctest
from importlib import import_module

import pytest

MODULES = [
    "demo_corpus",
    "luna_fairseq.benchmark.measure",
    "luna_fairseq.benchmark.page",
    "luna_fairseq.checks.bounds",
    "luna_fairseq.checks.names",
    "luna_fairseq.commands.arguments",
    "luna_fairseq.commands.recipes",
    "luna_fairseq.lra.listops",
    "luna_fairseq.lra.seeds",
    "luna_fairseq.masked_lm.finetuning.settings",
    "luna_fairseq.progress",
    "luna_fairseq.requirements",
    "luna_fairseq.translation.plot_alignments",
    "luna_fairseq.translation.scores",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    failed, tried = doctest.testmod(import_module(name))
    assert tried and not failed
