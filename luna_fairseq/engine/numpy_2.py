"""fairseq with numpy 2."""

import types
from typing import Any

import numpy

from luna_fairseq.engine.mend import Mend


def _lacks_compat() -> bool:
    return not hasattr(numpy, "compat")


NUMPY_COMPAT = Mend(
    "numpy-compat",
    what="makes blocks of sentences (--sample-break-mode eos), and lets language models generate",
    why="fairseq asks for numpy.compat.long there, which numpy 2 no longer has",
    versions="numpy >= 2",
    needed=_lacks_compat,
)


@NUMPY_COMPAT.around("fairseq.data.language_pair_dataset:np", "fairseq.data.token_block_dataset:np")
def _with_compat(np: Any) -> Any:
    mended = types.ModuleType("numpy")
    vars(mended).update(vars(np), compat=types.SimpleNamespace(long=int))
    return mended
