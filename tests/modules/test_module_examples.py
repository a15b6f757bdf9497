"""The examples in the docstrings of the plain modules."""

import doctest

import pytest

from luna_fairseq.modules import luna_attention, luna_causal_attention


@pytest.mark.parametrize(
    "module", [luna_attention, luna_causal_attention], ids=lambda module: module.__name__
)
def test_examples(module):
    failed, tried = doctest.testmod(module)
    assert tried >= 10 and not failed
