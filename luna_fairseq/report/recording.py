"""The weights of every attention of a model while it runs: asked of each, with what it was called with."""

from __future__ import annotations

import copy
import inspect
import re
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

import torch
from torch import Tensor, nn

from fairseq.modules import MultiheadAttention
from luna_fairseq.modules import LunaAttention, LunaCausalAttention

_PLACE = re.compile(r"(encoder|decoder)\..*?layers\.(\d+)\.(?:.*\.)?(self_attn|encoder_attn)(?:\.softmax)?")
KINDS = {"self_attn": "self", "encoder_attn": "cross"}

PACK, UNPACK, READ = "pack", "unpack", "read"
Weights = Dict[str, Tensor]
# What an attention was called with, by the names of its arguments.
Call = Dict[str, Any]
Reader = Callable[[Any, Call], Weights]
# What the watcher of Luna attention, and of Luna causal attention, gets besides the attention.
_CALLS = (
    ("query", "packed", "context", "source", "geometry"),
    ("query", "packed", "key_padding_mask", "packed_padding_mask"),
)


class Recorded(NamedTuple):
    """
    Attributes:
        name: "encoder.0.self", "decoder.5.cross": stack, layer, and what is attended to.
        weights: PACK [B, H, L, S], UNPACK [B, H, T, L], READ [B, H, T, S]; those that the attention has.
        strengths: what anchored attention has learned, by name [H].
    """

    name: str
    weights: Weights
    strengths: Dict[str, Tensor]


@contextmanager
def recorded(model: nn.Module) -> Iterator[List[Recorded]]:
    """A list that fills as ``model`` runs whole sequences within the context, a call after the other."""
    found: List[Recorded] = []
    watched = []

    def watch(module: nn.Module, read: Reader, stack: str, layer: int, kind: str) -> None:
        forward, layers = module.forward, count(layer)
        watched.append(module)

        def record(call: Call) -> None:
            place = next(layers)  # of a layer that is applied many times each call is a layer
            weights = read(module, call)
            if weights:
                found.append(Recorded(f"{stack}.{place}.{KINDS[kind]}", weights, _strengths(module)))

        if hasattr(module, "watcher"):
            names = _CALLS[isinstance(module, LunaCausalAttention)]
            module.watcher = lambda attention, *call: record(dict(zip(names, call)))
            return

        def watching(*args: Any, **kwargs: Any) -> Any:
            call = inspect.signature(forward).bind(*args, **kwargs)
            call.apply_defaults()
            record(dict(call.arguments))
            return forward(*args, **kwargs)

        module.__dict__["forward"] = watching  # all calls, by whatever names fairseq gives the arguments

    for name, module in model.named_modules():
        place, read = _PLACE.fullmatch(name), _reader(module)
        if place is not None and read is not None:
            watch(module, read, place[1], int(place[2]), place[3])
        if getattr(module, "can_use_fastpath", False):  # fairseq 0.12.2 would pass its attention by
            module.can_use_fastpath = False
    try:
        with torch.no_grad():
            yield found
    finally:
        for module in watched:
            if hasattr(module, "watcher"):
                module.watcher = None
            else:
                del module.__dict__["forward"]


def _reader(module: nn.Module) -> Optional[Reader]:
    for kind, read in _READERS.items():
        if isinstance(module, kind):
            return read
    # An attention that defines itself as whole matrices of weights, times values.
    return _read_definition if getattr(module, "weighs_values", False) else None


def _read_luna(attention: LunaAttention, call: Call) -> Weights:
    named = zip((PACK, UNPACK, READ), attention.weights(**call))
    return {name: value for name, value in named if value is not None}


def _read_causal(attention: LunaCausalAttention, call: Call) -> Weights:
    pack, unpack = _with(attention.weights, call)  # [B, H, T, L]
    steps = torch.arange(1, pack.size(2) + 1, device=pack.device)
    read = (unpack @ pack.transpose(-2, -1)).tril() / steps[:, None]
    return {PACK: pack.transpose(-2, -1), UNPACK: unpack, READ: read}


def _read_softmax(attention: MultiheadAttention, call: Call) -> Weights:
    # With a store for decoding fairseq computes attention itself; torch's function has no weights of each
    # head.
    call = {**call, "need_weights": True, "need_head_weights": True, "incremental_state": {}}
    _, weights = _with(partial(type(attention).forward, attention), call)
    return {READ: weights.transpose(0, 1)}


def _read_definition(attention: Any, call: Call) -> Weights:
    """Weights of an attention that is linear in its values: what it makes of unit vectors as values."""
    if getattr(attention, "form", "") == "cross":
        forward = partial(type(attention).forward, attention)
        _, weights = _with(forward, {**call, "need_head_weights": True, "incremental_state": None})
        return {READ: _weights_of_units(attention, call) if weights is None else weights.transpose(0, 1)}
    parts = list(attention.project(call["query"]))
    for place, (name, part) in enumerate(zip(attention.projections, parts)):
        if name.endswith("v"):
            units = torch.eye(part.size(2), dtype=part.dtype, device=part.device)
            parts[place] = units.expand(*part.shape[:2], -1, -1)
    return {READ: attention.define(*parts, padding=None)}


def _weights_of_units(attention: Any, call: Call) -> Tensor:
    """The same [B, H, T, S] of cross-attention that reads a digest of the context."""
    context = call["key"]
    units = torch.eye(len(context), dtype=context.dtype, device=context.device)
    values = units.repeat(1, attention.num_heads)[:, None].expand(-1, context.size(1), -1)
    of_units = copy.copy(attention)
    of_units._modules = {**attention._modules, "v_proj": _Given(values)}
    padding = call["key_padding_mask"]
    memory = of_units.digest(context, None if padding is None else padding.bool())
    return of_units.read(call["query"], memory)[0]


class _Given(nn.Module):
    """A projection to ``values``, whatever it is called with."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = values

    def forward(self, _: Tensor) -> Tensor:
        return self.values


_READERS: Dict[type, Reader] = {
    LunaAttention: _read_luna,
    LunaCausalAttention: _read_causal,
    MultiheadAttention: _read_softmax,
}


def _strengths(module: nn.Module) -> Dict[str, Tensor]:
    found = {}
    for part in ("pack", "unpack"):
        anchor = getattr(module, f"{part}_anchor", None)
        if anchor is not None:
            found[f"{part} gamma"] = anchor.strength()
    diagonal = getattr(module, "diagonal", None)
    if diagonal is not None:
        found.update({"diagonal gamma": diagonal.strength(), "diagonal ratio": diagonal.ratio()})
    gate = getattr(module, "lookup_gate", None)
    if gate is not None:
        found["look-up gate"] = gate()
    return found


def _with(function: Callable[..., Any], call: Call) -> Any:
    """Call ``function`` with those of the arguments that it has."""
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in call.items() if name in names})
