"""fairseq with numpy 2."""

import types
from typing import Any

import numpy

from luna_fairseq.engine.mend import RUNS, Mend

NUMPY_COMPAT = Mend(
    "numpy-compat",
    RUNS,
    "--sample-break-mode eos, --num-batch-buckets and language models that generate ask for "
    "numpy.compat.long and percentile(interpolation=), which numpy no longer has",
    versions="numpy >= 2",
    needed=lambda: not hasattr(numpy, "compat"),
)


@NUMPY_COMPAT.around("fairseq.data.bucket_pad_length_dataset:get_buckets")
def _with_todays_name(_: Any, sizes: Any, num_buckets: int) -> Any:
    """numpy 2.4 no longer takes method by its older name, interpolation."""
    shares = numpy.linspace(0, 100, num_buckets + 1)
    return numpy.unique(numpy.percentile(sizes, shares, method="lower")[1:])


@NUMPY_COMPAT.around("fairseq.data.language_pair_dataset:np", "fairseq.data.token_block_dataset:np")
def _with_compat(np: Any) -> Any:
    mended = types.ModuleType("numpy")
    vars(mended).update(vars(np), compat=types.SimpleNamespace(long=int))
    return mended
