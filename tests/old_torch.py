"""Workarounds for features that tests use and torch 1.13 lacks.

These are fp16 on a CPU, layer norms under autocast on a CPU, floats in files loaded with ``weights_only``,
models on the device ``meta``, and hooks with keyword arguments.
"""

from contextlib import nullcontext

import torch

# In torch 1, the restricted reader refuses pickled floats. The files here are our own, so they are trusted.
WEIGHTS_ONLY = torch.__version__.split(".")[0] != "1"

HAS_KEYWORD_HOOKS = WEIGHTS_ONLY

HAS_AUTOCAST_NORM = WEIGHTS_ONLY


def without_memory():
    """Return a context in which parameters take no memory. In torch 1, the context has no effect."""
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
    """Return True if torch raised ``error`` because an operation does not support fp16 on a CPU."""
    return not FP16_ON_CPU and isinstance(error, RuntimeError) and "not implemented for 'Half'" in str(error)
