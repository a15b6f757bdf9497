"""What torch 1.13 lacks that tests use, but no user: fp16 on a CPU, floats in files read with
``weights_only``, building on the device ``meta``, hooks that get keyword arguments."""

from contextlib import nullcontext

import torch

# Its restricted reader knows no pickled float; the files here are our own.
WEIGHTS_ONLY = torch.__version__.split(".")[0] != "1"

HAS_KEYWORD_HOOKS = WEIGHTS_ONLY


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
