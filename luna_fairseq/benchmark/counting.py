"""A training step of a real model, counted on torch's meta device: operations by torch's flop formulas, bytes
that every operation reads and writes, and what is kept for the backward pass.

Tokens, and what follows from them alone (masks, lengths, places), are numbers on the CPU, since shapes depend
on them; all else is on the meta device and has no numbers.
"""

from contextlib import nullcontext
from typing import Any, Callable, Dict, List, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten


class Operation(NamedTuple):
    """One call: multiplications and additions of products, bytes in and out, type of the first operand."""

    flops: int
    bytes: int
    dtype: torch.dtype


class Step(NamedTuple):
    """A forward and a backward pass: parameters (shared ones once), operations but those that make views, the
    bytes that the backward pass waits for, parameters apart, and those of the largest tensor."""

    parameters: int
    operations: List[Operation]
    kept: int
    largest: int


def count_step(
    build: Callable[[], torch.nn.Module], loss: Callable[[Any], Tensor], dtype: torch.dtype
) -> Step:
    """Count the training step of what ``build`` makes, given ``dtype``, with its loss of a batch."""
    attention = mock.patch.object(F, "scaled_dot_product_attention", _attention)
    autocast = mock.patch.object(torch, "autocast", lambda *args, **kwargs: nullcontext())  # knows no meta
    kept: Dict[int, Any] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage()._cdata] = x.untyped_storage()
        return x

    with torch.device("meta"), attention, autocast:
        with _Counter():
            model = build().to(dtype).train()
        own = {x.untyped_storage()._cdata for x in model.parameters()}
        with _Counter() as counter:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
                value = loss(model)
            size = sum(storage.nbytes() for key, storage in kept.items() if key not in own)
            kept.clear()
            value.backward()
    return Step(sum(p.numel() for p in model.parameters()), counter.operations, size, counter.largest)


class _Counter(TorchDispatchMode):
    """Notes what every operation does."""

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry

        super().__init__()
        self.operations: List[Operation] = []
        self.largest, self.formulas = 0, flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet, kwargs = func._overloadpacket, kwargs or {}
        given = _tensors((args, kwargs))
        if all(x.device.type == "cpu" for x in given) and (given or _makes_integers(packet, **kwargs)):
            args, kwargs = _on("cpu", (args, kwargs))
            return func(*args, **kwargs)
        if packet is aten._local_scalar_dense:
            return 0.0  # for a log
        if packet in (aten.index, aten.index_put_, aten._unsafe_index):  # a mask's count is a shape
            args = (args[0], [y for x in args[1] for y in _places(x)], *args[2:])
        args, kwargs = _on("meta", (args, kwargs))
        out = func(*args, **kwargs)
        tensors = _tensors((args, kwargs, out))
        makes_none = func.is_view or packet in (aten.detach, aten.empty, aten.empty_like, aten.new_empty)
        if tensors and not makes_none:
            used = {id(x): min(x.numel() * x.element_size(), x.untyped_storage().nbytes()) for x in tensors}
            flops = int(self.formulas[packet](*args, **kwargs, out_val=out)) if packet in self.formulas else 0
            self.largest = max(self.largest, *used.values())
            self.operations.append(Operation(flops, sum(used.values()), tensors[0].dtype))
        return out


def _tensors(tree: Any) -> List[Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, Tensor)]


def _on(device: str, tree: Any) -> Any:
    """Arguments whose tensors and devices are that one."""

    def moved(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.to(device)
        return torch.device(device) if isinstance(x, torch.device) else x

    return tree_map(moved, tree)


def _makes_integers(packet: Any, dtype: Any = None, **unused: Any) -> bool:
    """Whether a function that is given no tensor makes one of positions or masks."""
    if dtype is None:
        return packet in (aten.arange, aten.randint)
    return not (dtype.is_floating_point or dtype.is_complex)


def _places(x: Any) -> Any:
    """A mask as the indices of what it takes."""
    is_mask = isinstance(x, Tensor) and x.dtype == torch.bool and x.device.type == "cpu"
    return x.nonzero().unbind(1) if is_mask else (x,)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False
) -> Tensor:
    """scaled_dot_product_attention by the kernels of a GPU, which never write their weights."""
    q, k, v = (x.contiguous() for x in (q, k, v))
    if attn_mask is None:
        return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal)[0]
    bias = torch.empty_like(attn_mask, dtype=q.dtype).expand(*q.shape[:3], k.size(2))
    return aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, dropout_p, is_causal)[0]
