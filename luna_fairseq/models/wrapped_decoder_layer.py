"""Activation checkpointing and sharding of decoder layers, which have the methods ``forward`` and ``read``.

fairseq's wrappers know ``forward`` alone, and pass gradients to tensors but not to tuples of tensors.
"""

from functools import partial
from typing import Any, Callable, Dict

from torch import Tensor, nn

from fairseq.distributed import fsdp_wrap
from fairseq.modules.checkpoint_activations import CheckpointFunction
from luna_fairseq.modules.memory import call_with_tensors

METHODS = ("forward", "read")


def checkpoint_methods(layer: nn.Module, offload: bool = False) -> nn.Module:
    """Make a layer recompute activations in the backward pass. ``offload`` keeps its inputs on the CPU."""
    for name in METHODS:
        setattr(layer, name, partial(_checkpoint, getattr(layer, name), offload))
    return layer


def _checkpoint(function: Callable[..., Any], offload: bool, *inputs: Any) -> Any:
    def run(call: Callable[..., Any], *tensors: Tensor) -> Any:
        return CheckpointFunction.apply(call, {"offload": offload}, [], *tensors)

    return call_with_tensors(run, function, *inputs)


def shard_methods(layer: nn.Module, min_num_params: int) -> nn.Module:
    """Wrap a decoder layer with FSDP if fairseq trains with it, so that its parameters are sharded.

    FSDP gathers the parameters when ``forward`` is called, so ``read`` is called through ``forward`` too.
    """
    methods = {name: getattr(layer, name) for name in METHODS}
    wrapped: Any = fsdp_wrap(layer, min_num_params=min_num_params)
    if wrapped is not layer:
        layer.forward = partial(_call_method, methods)
        wrapped.read = partial(wrapped, method="read")
    return wrapped


def _call_method(methods: Dict[str, Callable[..., Any]], *inputs: Any, method: str = "forward") -> Any:
    return methods[method](*inputs)
