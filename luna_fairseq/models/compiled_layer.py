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
    """Run a layer through torch.compile in training mode, and uncompiled in evaluation mode.

    Parameters keep their names. All layers of the same class share the compiled code.

    Args:
        layer: layer to compile, modified in place.

    Returns:
        The layer itself.

    Raises:
        InputError: torch is older than 2.5. Older versions compile each layer separately, and stop compiling
            after a few layers.
    """
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 5):
        raise InputError(
            f"--torch-compile needs torch 2.5 or newer, this is {torch.__version__}: remove the option"
        )
    layer.forward = MethodType(_forward, layer)  # a bound method is copied together with its layer
    return layer


def _forward(layer: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Run a layer: compiled in training mode, uncompiled in evaluation mode.

    Args:
        layer: layer to run.
        x: first argument of the layer's ``forward``, such as a sequence [length, batch size, width].
        args: remaining positional arguments of ``forward``.
        kwargs: remaining keyword arguments of ``forward``.

    Returns:
        Result of ``forward``.
    """
    layer_class: Any = type(layer)
    if not layer.training:
        return layer_class.forward(layer, x, *args, **kwargs)
    # Compiled code depends on the memory layout, and the input of the first layer is a transposed view.
    return _compiled(layer_class)(layer, x.contiguous(), *args, **kwargs)


@lru_cache(maxsize=None)
def _compiled(layer_class: Any) -> Callable[..., Any]:
    """Compile the ``forward`` method of a layer class once, and return the compiled function.

    Args:
        layer_class: subclass of :class:`torch.nn.Module`.

    Returns:
        Function ``(layer, *args)``. Every call returns the same function.
    """
    return torch.compile(layer_class.forward)
