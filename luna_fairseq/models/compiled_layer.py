"""torch.compile for the layers, in training alone: decoding changes its shapes at every step."""

from functools import lru_cache
from types import MethodType
from typing import Any, Callable

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError


def compile_in_training(layer: nn.Module) -> nn.Module:
    """Let ``layer`` run through torch.compile in training mode, and as before in evaluation mode. Parameters
    keep their names, and all layers of a class share the compiled code.

    Raises:
        InputError: torch is older than 2.5, which compiled every layer anew until it gave up
    """
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 5):
        raise InputError(
            f"--torch-compile needs torch 2.5 or newer, this is {torch.__version__}: leave it out"
        )
    layer.forward = MethodType(_forward, layer)  # a bound method is copied with its layer
    return layer


def _forward(layer: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    layer_class: Any = type(layer)
    if not layer.training:
        return layer_class.forward(layer, x, *args, **kwargs)
    # Code is compiled for an order in memory, too, and the first layer's input is a transposed one.
    return _compiled(layer_class)(layer, x.contiguous(), *args, **kwargs)


@lru_cache(maxsize=None)
def _compiled(layer_class: Any) -> Callable[..., Any]:
    return torch.compile(layer_class.forward)
