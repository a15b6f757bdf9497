"""torch.compile for layers in training mode.

Evaluation mode is not compiled, because shapes change at every step of decoding.
"""

from functools import lru_cache
from types import MethodType
from typing import Any, Callable

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError


def compile_in_training(layer: nn.Module) -> nn.Module:
    """Make a layer run through torch.compile in training mode.

    Parameters keep their names, and all layers of a class share the compiled code. Evaluation mode runs the
    plain code.

    Args:
        layer: layer to compile, changed in place.

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
    layer.forward = MethodType(_forward, layer)  # a bound method is copied with its layer
    return layer


def _forward(layer: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Run the compiled code of the layer's class in training mode, and the plain code otherwise.

    Args:
        layer: layer to run.
        x: first argument of the layer's ``forward``, such as a sequence [T, B, C].
        args: further arguments of ``forward``.
        kwargs: further arguments of ``forward``.

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
    """Return the compiled forward method of a class of layers."""
    return torch.compile(layer_class.forward)
