"""Recorder of the attention weights of a model while it runs.

Each attention module is asked for its weights with the arguments of its own forward call.
"""

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

_ATTENTION_NAME = re.compile(
    r"(encoder|decoder)\..*?layers\.(\d+)\.(?:.*\.)?(self_attn|encoder_attn)(?:\.softmax)?"
)
KINDS = {"self_attn": "self", "encoder_attn": "cross"}

PACK, UNPACK, READ = "pack", "unpack", "read"
Weights = Dict[str, Tensor]
# Arguments of the forward call of an attention, by name.
Call = Dict[str, Any]
Reader = Callable[[Any, Call], Weights]
# Arguments that Luna attention, and Luna causal attention, pass to their watcher after the module itself.
_CALLS = (
    ("query", "packed", "context", "source", "geometry"),
    ("query", "packed", "key_padding_mask", "packed_padding_mask"),
)


class Recorded(NamedTuple):
    """Attention weights of one layer for one forward call.

    Attributes:
        name: name of the attention, made of the stack, the layer counted from 0, and the kind:
            "encoder.0.self" or "decoder.5.cross".
        weights: PACK [B, H, L, S], UNPACK [B, H, T, L] and READ [B, H, T, S]. Attention without P has READ
            only.
        strengths: learned parameters of anchored attention [H], by name. Empty for other attention.
    """

    name: str
    weights: Weights
    strengths: Dict[str, Tensor]


@contextmanager
def recorded(model: nn.Module) -> Iterator[List[Recorded]]:
    """Context manager that records the attention weights of a model.

    Within the context, run the model on whole sequences, not step by step. Gradients are disabled.

    Args:
        model: model of luna_fairseq or fairseq.

    Yields:
        A list, to which each forward call of an attention module appends a record.

    Example:
        >>> with recorded(model) as records:  # doctest: +SKIP
        ...     model(source_tokens, source_lengths, previous_output_tokens)
        >>> records[0].name  # doctest: +SKIP
        'encoder.0.self'
    """
    records: List[Recorded] = []
    watched = []

    def watch(module: nn.Module, read: Reader, stack: str, layer: int, kind: str) -> None:
        forward, layers = module.forward, count(layer)
        watched.append(module)

        def record(call: Call) -> None:
            layer_index = next(layers)  # each call of a shared layer counts as a layer of its own
            weights = read(module, call)
            if weights:
                records.append(Recorded(f"{stack}.{layer_index}.{KINDS[kind]}", weights, _strengths(module)))

        if hasattr(module, "watcher"):
            names = _CALLS[isinstance(module, LunaCausalAttention)]
            module.watcher = lambda attention, *call: record(dict(zip(names, call)))
            return

        def recording_forward(*args: Any, **kwargs: Any) -> Any:
            call = inspect.signature(forward).bind(*args, **kwargs)
            call.apply_defaults()
            record(dict(call.arguments))
            return forward(*args, **kwargs)

        module.__dict__["forward"] = recording_forward

    for name, module in model.named_modules():
        match, read = _ATTENTION_NAME.fullmatch(name), _reader(module)
        if match is not None and read is not None:
            watch(module, read, match[1], int(match[2]), match[3])
        # The fast path of fairseq 0.12.2 does not call the attention module.
        if getattr(module, "can_use_fastpath", False):
            module.can_use_fastpath = False
    try:
        with torch.no_grad():
            yield records
    finally:
        for module in watched:
            if hasattr(module, "watcher"):
                module.watcher = None
            else:
                del module.__dict__["forward"]


def _reader(module: nn.Module) -> Optional[Reader]:
    """Return the function that reads the weights of a module, or None if the module has no weights."""
    for kind, read in _READERS.items():
        if isinstance(module, kind):
            return read
    # The peers whose output is a weighted sum of values declare it with this attribute.
    return _read_peer if getattr(module, "has_value_weights", False) else None


def _read_luna(attention: LunaAttention, call: Call) -> Weights:
    named = zip((PACK, UNPACK, READ), attention.weights(**call))
    return {name: value for name, value in named if value is not None}


def _read_causal(attention: LunaCausalAttention, call: Call) -> Weights:
    pack, unpack = _call_with_known(attention.weights, call)  # [B, H, T, L]
    steps = torch.arange(1, pack.size(2) + 1, device=pack.device)
    read = (unpack @ pack.transpose(-2, -1)).tril() / steps[:, None]
    return {PACK: pack.transpose(-2, -1), UNPACK: unpack, READ: read}


def _read_softmax(attention: MultiheadAttention, call: Call) -> Weights:
    # torch's fused function does not return the weights of each head. With an incremental state, fairseq
    # computes the attention itself.
    call = {**call, "need_weights": True, "need_head_weights": True, "incremental_state": {}}
    _, weights = _call_with_known(partial(type(attention).forward, attention), call)
    return {READ: weights.transpose(0, 1)}


def _read_peer(attention: Any, call: Call) -> Weights:
    """Return the weights of a peer attention, whose output is linear in the values.

    With unit vectors as values, the output of such an attention equals its weights.
    """
    if getattr(attention, "form", "") == "cross":
        forward = partial(type(attention).forward, attention)
        _, weights = _call_with_known(forward, {**call, "need_head_weights": True, "incremental_state": None})
        return {READ: _cross_weights(attention, call) if weights is None else weights.transpose(0, 1)}
    parts = list(attention.project(call["query"]))
    for index, (name, part) in enumerate(zip(attention.projections, parts)):
        if name.endswith("v"):
            unit_vectors = torch.eye(part.size(2), dtype=part.dtype, device=part.device)
            parts[index] = unit_vectors.expand(*part.shape[:2], -1, -1)
    return {READ: attention.attend_naively(*parts, padding=None)}


def _cross_weights(attention: Any, call: Call) -> Tensor:
    """Compute the weights of a cross-attention that compresses its context before it reads it.

    Returns:
        [B, H, T, S], the output for unit vectors as values.
    """
    context = call["key"]
    unit_vectors = torch.eye(len(context), dtype=context.dtype, device=context.device)
    values = unit_vectors.repeat(1, attention.num_heads)[:, None].expand(-1, context.size(1), -1)
    copied = copy.copy(attention)
    copied._modules = {**attention._modules, "v_proj": _Constant(values)}
    padding = call["key_padding_mask"]
    memory = copied.cache_context(context, None if padding is None else padding.bool())
    return copied.read_context(call["query"], memory)[0]


class _Constant(nn.Module):
    """Projection that ignores its input and returns fixed values.

    Args:
        values: tensor to return.
    """

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = values

    def forward(self, _: Tensor) -> Tensor:
        """Return the fixed values."""
        return self.values


_READERS: Dict[type, Reader] = {
    LunaAttention: _read_luna,
    LunaCausalAttention: _read_causal,
    MultiheadAttention: _read_softmax,
}


def _strengths(module: nn.Module) -> Dict[str, Tensor]:
    """Return the learned parameters of anchored attention [H] by name, or an empty dict."""
    strengths = {}
    for step in ("pack", "unpack"):
        anchor = getattr(module, f"{step}_anchor", None)
        if anchor is not None:
            strengths[f"{step} gamma"] = anchor.strength()
    diagonal = getattr(module, "diagonal", None)
    if diagonal is not None:
        strengths.update({"diagonal gamma": diagonal.strength(), "diagonal ratio": diagonal.ratio()})
    gate = getattr(module, "lookup_gate", None)
    if gate is not None:
        strengths["look-up gate"] = gate()
    return strengths


def _call_with_known(function: Callable[..., Any], call: Call) -> Any:
    """Call a function with those arguments of ``call`` that its signature names."""
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in call.items() if name in names})
