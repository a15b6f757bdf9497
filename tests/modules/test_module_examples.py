"""Run the examples in the docstring of ``luna_fairseq.modules``."""

import doctest

from luna_fairseq import modules


def test_examples():
    failed, tried = doctest.testmod(modules)
    assert tried >= 15 and not failed
