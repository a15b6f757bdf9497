"""Recorder of the attention weights of a model while it runs.

The recorder learns the arguments of each forward call of an attention module, and asks the module for the
weights that belong to them. The attentions of this package call a function, their ``watcher``. fairseq's
attention gets a forward hook of torch.
"""

from __future__ import annotations

import inspect
import re
from contextlib import contextmanager
from itertools import count
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq.modules import MultiheadAttention
from luna_fairseq.errors import InputError
from luna_fairseq.modules import LunaAttention, LunaCausalAttention
from luna_fairseq.peers.attention import PeerAttention
from luna_fairseq.requirements import version_numbers

_ATTENTION_NAME = re.compile(
    r"(encoder|decoder)\..*?layers\.(\d+)\.(?:.*\.)?(self_attn|encoder_attn)(?:\.softmax)?"
)
KINDS = {"self_attn": "self", "encoder_attn": "cross"}

PACK, UNPACK, READ = "pack", "unpack", "read"
Weights = Dict[str, Tensor]
# Arguments of the forward call of an attention, by name.
Call = Dict[str, Any]
Reader = Callable[[Any, Call], Weights]


class Recorded(NamedTuple):
    """Attention weights of one layer for one forward call.

    Attributes:
        name: name of the attention, made of the stack, the layer counted from 0, and the kind:
            "encoder.0.self" or "decoder.5.cross".
        weights: PACK [B, H, L, S], UNPACK [B, H, T, L] and READ [B, H, T, S]. Attention without
            the packed sequence P has READ only.
        strengths: learned parameters [H] of anchored attention, by name. Empty for other attention.
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

    Raises:
        InputError: The model has fairseq's attention, and torch is older than 2.0.

    Example:
        >>> with recorded(model) as records:  # doctest: +SKIP
        ...     model(source_tokens, source_lengths, previous_output_tokens)
        >>> records[0].name  # doctest: +SKIP
        'encoder.0.self'
    """
    records: List[Recorded] = []
    stops: List[Callable[[], None]] = []
    try:
        for name, module in model.named_modules():
            match, read = _ATTENTION_NAME.fullmatch(name), _reader(module)
            if match is not None and read is not None:
                recorder = _Recorder(read, match[1], int(match[2]), KINDS[match[3]], records)
                stops.append(_watch(module, recorder))
            # The fast path of fairseq 0.12.2 does not call the attention module.
            if getattr(module, "can_use_fastpath", False):
                module.can_use_fastpath = False
        with torch.no_grad():
            yield records
    finally:
        for stop in stops:
            stop()


class _Recorder:
    """Function of (attention, arguments of its forward call) that appends the weights of the call to a list.

    Args:
        read: function that returns the weights of a call.
        stack: "encoder" or "decoder".
        layer: number of the first layer that the attention belongs to.
        kind: "self" or "cross".
        records: list to append to.
    """

    def __init__(self, read: Reader, stack: str, layer: int, kind: str, records: List[Recorded]) -> None:
        self.read, self.stack, self.kind, self.records = read, stack, kind, records
        self.layers = count(layer)

    def __call__(self, attention: nn.Module, call: Call) -> None:
        layer = next(self.layers)  # each call of a shared layer counts as a layer of its own
        weights = self.read(attention, call)
        if weights:
            name = f"{self.stack}.{layer}.{self.kind}"
            self.records.append(Recorded(name, weights, _strengths(attention)))


def _watch(attention: nn.Module, recorder: _Recorder) -> Callable[[], None]:
    """Call a recorder at the start of each forward call of an attention.

    Args:
        attention: attention of this package or of fairseq.
        recorder: function to call.

    Returns:
        Function that ends the watch.

    Raises:
        InputError: The attention is fairseq's, and torch is older than 2.0.
    """
    if isinstance(attention, MultiheadAttention):
        return _hook_fairseq_attention(attention, recorder)
    names = _WATCHED[recorder.read]
    attention.watcher = lambda module, *values: recorder(module, dict(zip(names, values)))
    return lambda: setattr(attention, "watcher", None)


def _hook_fairseq_attention(attention: MultiheadAttention, recorder: _Recorder) -> Callable[[], None]:
    """Call a recorder before each forward call of fairseq's attention.

    Args:
        attention: fairseq's attention module.
        recorder: function that is called with the module and its arguments by name.

    Returns:
        Function that removes the hook.

    Raises:
        InputError: The version of torch is too old.
    """
    if version_numbers(torch.__version__) < (2,):
        raise InputError(
            f"Attention maps of fairseq's softmax attention need torch 2.0 or later, this is "
            f"{torch.__version__}. Install a later version."
        )
    signature = inspect.signature(attention.forward)

    def hook(module: nn.Module, args: Tuple[Any, ...], kwargs: Call) -> None:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        recorder(module, dict(call.arguments))

    return attention.register_forward_pre_hook(hook, with_kwargs=True).remove


def _reader(module: nn.Module) -> Optional[Reader]:
    """Return the function that reads the weights of a module, or None if the module has no weights."""
    if isinstance(module, PeerAttention) and not module.has_value_weights:
        return None
    return next((read for kind, read in _READERS.items() if isinstance(module, kind)), None)


def _read_luna(attention: LunaAttention, call: Call) -> Weights:
    named = zip((PACK, UNPACK, READ), attention.weights(**call))
    return {name: value for name, value in named if value is not None}


def _read_causal(attention: LunaCausalAttention, call: Call) -> Weights:
    pack, unpack = attention.weights(**call)  # [B, H, T, L]
    steps = torch.arange(1, pack.size(2) + 1, device=pack.device)
    read = (unpack @ pack.transpose(-2, -1)).tril() / steps[:, None]
    return {PACK: pack.transpose(-2, -1), UNPACK: unpack, READ: read}


def _read_softmax(attention: MultiheadAttention, call: Call) -> Weights:
    # torch's fused function does not return the weights of each head. With an incremental state, fairseq
    # computes the attention itself.
    call = {**call, "need_weights": True, "need_head_weights": True, "incremental_state": {}}
    _, weights = attention.forward(**call)  # not attention(**call), which would call the hook again
    return {READ: weights.transpose(0, 1)}


def _read_peer(attention: PeerAttention, call: Call) -> Weights:
    return {READ: attention.value_weights(**call)}


_READERS: Dict[type, Reader] = {
    LunaAttention: _read_luna,
    LunaCausalAttention: _read_causal,
    MultiheadAttention: _read_softmax,
    PeerAttention: _read_peer,
}
# Arguments that an attention passes to its watcher after itself. They are arguments of the function that
# returns its weights.
_WATCHED: Dict[Reader, Tuple[str, ...]] = {
    _read_luna: ("query", "packed", "context", "source", "geometry"),
    _read_causal: ("query", "packed", "key_padding_mask", "packed_padding_mask"),
    _read_peer: ("query", "key", "key_padding_mask"),
}


def _strengths(module: nn.Module) -> Dict[str, Tensor]:
    """Return the learned parameters of anchored attention.

    Args:
        module: attention module.

    Returns:
        Value [H] of each head, by the name of the parameter. Empty if the module has no such parameters.
    """
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
