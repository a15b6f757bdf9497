"""Pytest plugin for fairseq's own tests.

The plugin adds what fairseq alone needs with new versions of numpy and torch, so that fairseq is compared
with itself. If LUNA_FAIRSEQ_IMPORTED is set in the environment, luna_fairseq is imported first.
"""

import functools
import os
import types

import numpy
import torch

if not hasattr(numpy, "compat"):
    numpy.compat = types.SimpleNamespace(long=int)

torch.load = functools.partial(torch.load, weights_only=False)

if os.environ.get("LUNA_FAIRSEQ_IMPORTED"):
    import luna_fairseq.models  # noqa: F401
