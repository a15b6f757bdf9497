"""Compile layers with torch.compile for training.

In evaluation mode, layers run uncompiled, because the sequence length changes at every decoding step.
"""

from functools import lru_cache
from types import MethodType
from typing import Any, Callable

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError


def compile_in_training(layer: nn.Module) -> nn.Module:
    """Compile a layer's methods ``forward`` and ``read`` with torch.compile, and return the layer.

    The compiled code runs in training mode only. Layers of the same class share it, because versions of torch
    before 2.5 would compile each layer separately, and stop after a few.
    """
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 5):
        raise InputError(
            f"--torch-compile needs torch 2.5 or newer, this is {torch.__version__}: remove the option"
        )
    # Bound methods are copied together with their layer.
    layer.forward = MethodType(_forward, layer)
    if hasattr(layer, "read"):
        layer.read = MethodType(_read, layer)
    return layer


def _forward(layer: nn.Module, *inputs: Any, **kwargs: Any) -> Any:
    """Call ``forward`` of a layer: the compiled code in training mode, otherwise the original."""
    return _call(layer, "forward", *inputs, **kwargs)


def _read(layer: nn.Module, *inputs: Any, **kwargs: Any) -> Any:
    """Call ``read`` of a decoder layer: the compiled code in training mode, otherwise the original."""
    return _call(layer, "read", *inputs, **kwargs)


def _call(layer: nn.Module, name: str, *inputs: Any, **kwargs: Any) -> Any:
    if not layer.training:
        return getattr(type(layer), name)(layer, *inputs, **kwargs)
    # Compiled code depends on the memory layout, and the input of the first layer is a transposed view.
    inputs = tuple(x.contiguous() if isinstance(x, Tensor) else x for x in inputs[:1]) + inputs[1:]
    layer_class: Any = type(layer)
    return _compiled(layer_class, name)(layer, *inputs, **kwargs)


@lru_cache(maxsize=None)
def _compiled(layer_class: Any, name: str) -> Callable[..., Any]:
    """Return the compiled version of a method, which all layers of a class share."""
    return torch.compile(getattr(layer_class, name))
