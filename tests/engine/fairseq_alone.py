"""A pytest plugin for fairseq's own tests: what fairseq alone needs with new versions of numpy and torch, so
that it is compared with itself. LUNA_FAIRSEQ_IMPORTED in the environment imports luna_fairseq first."""

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
