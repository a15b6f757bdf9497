"""Examples in the docstrings of functions that need torch alone."""

import doctest
from importlib import import_module

import pytest

MODULES = [
    "luna_fairseq.ops.attention",
    "luna_fairseq.ops.causal_linear.chunk",
    "luna_fairseq.ops.causal_luna",
    "luna_fairseq.ops.causal_luna.inputs",
    "luna_fairseq.ops.causal_luna.recurrent",
    "luna_fairseq.ops.softmax",
    "luna_fairseq.optim.apollo",
    "luna_fairseq.optim.milestone_schedule",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    failed, tried = doctest.testmod(import_module(name))
    assert tried and not failed
