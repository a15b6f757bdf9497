"""fairseq patch ``numpy-compat``: restore ``numpy.compat``, which NumPy 2 removed."""

import types
from typing import Any

import numpy

from luna_fairseq.engine.patch import RUNS, Patch

NUMPY_COMPAT = Patch(
    "numpy-compat",
    RUNS,
    "Language models cannot be trained line by line (--sample-break-mode eos) and cannot generate text, "
    "because fairseq uses numpy.compat.long, which numpy 2 has removed.",
    versions="numpy >= 2",
    is_needed=lambda: not hasattr(numpy, "compat"),
)


@NUMPY_COMPAT.replaces("fairseq.data.token_block_dataset:np")
def _add_compat(np: Any) -> Any:
    """Return a copy of the numpy module that has ``compat.long``, which NumPy 2 removed.

    The copy replaces ``np`` in fairseq's ``token_block_dataset``.
    """
    extended = types.ModuleType("numpy")
    vars(extended).update(vars(np), compat=types.SimpleNamespace(long=int))
    return extended
