"""What torch 1.13 lacks that tests use, but no user: fp16 on a CPU, floats in files read with ``weights_only``, building
on the device ``meta``; and what fairseq 0.12.2's own Transformer does not do there."""

from contextlib import nullcontext

import pytest
import torch

import fairseq

# fairseq 0.12.2's Transformer keeps copies of its encoder layers' weights that never get a gradient, and with torch 1.13
# it stops in generation ("Mask Type should be defined"). The plugin's models have neither.
trains_fairseq_transformer = pytest.mark.skipif(
    fairseq.__version__ == "0.12.2", reason="fairseq 0.12.2's own Transformer does not do it with torch 1.13"
)
# Its restricted reader knows no pickled float; the files here are our own.
WEIGHTS_ONLY = torch.__version__.split(".")[0] != "1"


def without_memory():
    """A context in which models are built whose parameters take no memory, where torch has that."""
    device = torch.device("meta")
    return device if hasattr(device, "__enter__") else nullcontext()


def _fp16_on_cpu() -> bool:
    x = torch.ones(1, 2, 2, dtype=torch.float16)
    try:
        torch.nn.functional.layer_norm(x @ x, (2,)).softmax(dim=-1)
    except RuntimeError:
        return False
    return True


FP16_ON_CPU = _fp16_on_cpu()


def lacks_fp16_kernel(error: Exception) -> bool:
    """Whether ``error`` is torch's own word that an operation has no form for fp16 on a CPU."""
    return not FP16_ON_CPU and isinstance(error, RuntimeError) and "not implemented for 'Half'" in str(error)
