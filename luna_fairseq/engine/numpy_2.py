"""fairseq with numpy 2."""

import types
from typing import Any

import numpy

from luna_fairseq.engine.mend import RUNS, Mend

NUMPY_COMPAT = Mend(
    "numpy-compat",
    RUNS,
    "Language models cannot be trained line by line (--sample-break-mode eos) or generate: fairseq asks for "
    "numpy.compat.long, which numpy no longer has.",
    versions="numpy >= 2",
    needed=lambda: not hasattr(numpy, "compat"),
)


@NUMPY_COMPAT.around("fairseq.data.token_block_dataset:np")
def _with_compat(np: Any) -> Any:
    mended = types.ModuleType("numpy")
    vars(mended).update(vars(np), compat=types.SimpleNamespace(long=int))
    return mended
