"""Recording of attention weights while a model runs.

Each attention module reports the arguments of its forward calls. The weights are computed from these
arguments, named ``call`` below. This package's attention modules have a callback for this purpose, the
attribute ``watcher``. For fairseq's attention, a forward pre-hook is used.
"""

from __future__ import annotations

import inspect
import re
from contextlib import contextmanager
from itertools import count
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from fairseq.modules import MultiheadAttention
from luna_fairseq.errors import InputError
from luna_fairseq.modules import Geometry, LunaAttention, LunaCausalAttention
from luna_fairseq.ops.causal_luna.naive import decayed_shares
from luna_fairseq.peers.attention import PeerAttention
from luna_fairseq.requirements import version_numbers

_ATTENTION_NAME = re.compile(
    r"(encoder|decoder)\..*?layers\.(\d+)\.(?:.*\.)?(self_attn|encoder_attn)(?:\.softmax)?"
)
KINDS = {"self_attn": "self", "encoder_attn": "cross"}

PACK, UNPACK, READ = "pack", "unpack", "read"
Weights = Dict[str, Tensor]
# Arguments of an attention module's forward call, keyed by name.
Call = Dict[str, Any]
WeightFunction = Callable[[Any, Call], Weights]


class AttentionRecord(NamedTuple):
    """Attention weights of one layer in one forward pass.

    Shapes: B batch size, H number of heads, T queries, S context tokens, L length of the packed sequence P.

    Attributes:
        name: name such as "encoder.0.self" or "decoder.5.cross", formed of the stack, the zero-based index of
            the layer, and the type of attention.
        weights: weights keyed by name: "pack" [B, H, L, S], "unpack" [B, H, T, L], and their product "read"
            [B, H, T, S]. Attention modules without P have only "read".
        strengths: learned parameters of anchored attention (Luna attention with a bias toward nearby tokens),
            [H], keyed by name, such as "pack gamma". Empty for other attention modules.
    """

    name: str
    weights: Weights
    strengths: Dict[str, Tensor]


@contextmanager
def record_attention(model: nn.Module) -> Iterator[List[AttentionRecord]]:
    """Context manager that yields a list of one :class:`AttentionRecord` per call of an attention module.

    Within the context, run the model on whole sequences, not incrementally. Gradients are disabled. fairseq's
    attention needs torch 2.0.

    Example:
        >>> with record_attention(model) as records:  # doctest: +SKIP
        ...     model(source_tokens, source_lengths, previous_output_tokens)
        >>> records[0].name  # doctest: +SKIP
        'encoder.0.self'
    """
    records: List[AttentionRecord] = []
    stops: List[Callable[[], None]] = []
    try:
        for name, module in model.named_modules():
            match, found = _ATTENTION_NAME.fullmatch(name), _find_weight_function(module)
            if match is not None and found is not None:
                compute_weights, watched = found
                recorder = _CallRecorder(compute_weights, match[1], int(match[2]), KINDS[match[3]], records)
                stops.append(_attach_recorder(module, recorder, watched))
            # The fast path of fairseq 0.12.2 does not call the attention module.
            if getattr(module, "can_use_fastpath", False):
                module.can_use_fastpath = False
        with torch.no_grad():
            yield records
    finally:
        for stop in stops:
            stop()


class _CallRecorder:
    """Callback of an attention module that records the attention weights of each of its calls.

    ``compute_weights`` maps the module and the arguments of a call to weights, keyed by name. ``stack`` is
    "encoder" or "decoder", ``layer`` the index of the layer, and ``kind`` "self" or "cross". A layer that
    runs several times gets consecutive indices. The results are appended to ``records``.
    """

    def __init__(
        self,
        compute_weights: WeightFunction,
        stack: str,
        layer: int,
        kind: str,
        records: List[AttentionRecord],
    ) -> None:
        self.compute_weights, self.stack, self.kind, self.records = compute_weights, stack, kind, records
        self.layers = count(layer)
        # Arguments of the last call of `pack`. While the weights are computed, no calls are recorded.
        self.pack_call: Call = {}
        self.computes_weights = False

    def record_luna(self, attention: LunaAttention, **call: Any) -> None:
        """Record the weights of Luna attention, which reports its arguments in two calls.

        The arguments of pack attention are reported when the source is read, and the arguments of unpack
        attention when the target is computed.
        """
        if self.computes_weights:
            return
        if "packed" in call:
            self.pack_call = call
            return
        geometry = _merge_geometry(self.pack_call["geometry"], call["geometry"])
        self.computes_weights = True
        self(attention, {**self.pack_call, "query": call["query"], "geometry": geometry})
        self.computes_weights = False

    def __call__(self, attention: nn.Module, call: Call) -> None:
        layer = next(self.layers)  # Each call of a shared layer counts as a layer of its own.
        weights = self.compute_weights(attention, call)
        if weights:
            name = f"{self.stack}.{layer}.{self.kind}"
            self.records.append(AttentionRecord(name, weights, _anchor_strengths(attention)))


def _merge_geometry(packing: Optional[Geometry], unpacking: Optional[Geometry]) -> Optional[Geometry]:
    """Merge the token positions of the context and of the queries, which a decoder passes separately."""
    if packing is None or unpacking is None:
        return packing or unpacking
    target = packing.target if unpacking.target is None else unpacking.target
    return packing._replace(target=target)


def _attach_recorder(
    attention: nn.Module, recorder: _CallRecorder, watched: Sequence[str]
) -> Callable[[], None]:
    """Call a recorder at the start of each call of an attention module. Return a function to detach it.

    ``watched`` are the names of the arguments that the module passes to its watcher, after the module itself.
    """
    if isinstance(attention, MultiheadAttention):
        return _hook_fairseq_attention(attention, recorder)
    if isinstance(attention, LunaAttention):
        attention.watcher = recorder.record_luna
        return lambda: setattr(attention, "watcher", None)
    attention.watcher = lambda module, *values: recorder(module, dict(zip(watched, values)))
    return lambda: setattr(attention, "watcher", None)


def _hook_fairseq_attention(attention: MultiheadAttention, recorder: _CallRecorder) -> Callable[[], None]:
    """Make fairseq's attention call a recorder before each call. Return a function that removes the hook."""
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


def _find_weight_function(module: nn.Module) -> Optional[Tuple[WeightFunction, Sequence[str]]]:
    """Return an attention module's entry of ``_WEIGHT_FUNCTIONS``, or None for other modules."""
    if isinstance(module, PeerAttention) and not module.has_value_weights:
        return None
    for attention_class, found in _WEIGHT_FUNCTIONS.items():
        if isinstance(module, attention_class):
            return found
    return None


def _compute_luna_weights(attention: LunaAttention, call: Call) -> Weights:
    """Compute the weights of non-causal Luna attention: "pack", "unpack" and their product "read"."""
    named = zip((PACK, UNPACK, READ), attention.weights(**call))
    return {name: value for name, value in named if value is not None}


def _compute_causal_weights(attention: LunaCausalAttention, call: Call) -> Weights:
    """Compute the weights of causal Luna attention: "pack", "unpack" and the resulting "read".

    The weight of position j for position t is ``share[t, j] * (unpack[t] @ pack[j])``. The share is 1 / t, or
    decays with the distance between t and j.
    """
    pack, unpack = attention.weights(**call)  # [B, H, T, L]
    log_decay = attention.log_decay()
    if log_decay is None:
        log_decay = pack.new_zeros(attention.num_heads)
    # The pack weights are never in half precision.
    shares = decayed_shares(log_decay.to(pack.dtype), call["key_padding_mask"], pack.size(2))
    packed_tokens = pack.transpose(-2, -1)
    return {PACK: packed_tokens, UNPACK: unpack, READ: unpack.to(pack.dtype) @ packed_tokens * shares}


def _compute_softmax_weights(attention: MultiheadAttention, call: Call) -> Weights:
    """Compute the weights of fairseq's softmax attention, named "read"."""
    # torch's fused function does not return per-head weights. With an incremental state, fairseq computes
    # attention itself.
    call = {**call, "need_weights": True, "need_head_weights": True, "incremental_state": {}}
    _, weights = attention.forward(**call)  # not attention(**call), which would call the hook again
    return {READ: weights.transpose(0, 1)}


def _compute_peer_weights(attention: PeerAttention, call: Call) -> Weights:
    """Compute the weights of an attention mechanism of luna_fairseq.peers, named "read"."""
    return {READ: attention.value_weights(**call)}


# For each class of attention modules, the function that computes the weights, and the names of the positional
# arguments that a module passes to its watcher, after the module itself. The function gets these arguments.
# LunaAttention passes its arguments by name, and fairseq's attention has no watcher.
_WEIGHT_FUNCTIONS: Dict[type, Tuple[WeightFunction, Sequence[str]]] = {
    LunaAttention: (_compute_luna_weights, ()),
    LunaCausalAttention: (_compute_causal_weights, ("query", "memory", "key_padding_mask")),
    MultiheadAttention: (_compute_softmax_weights, ()),
    PeerAttention: (_compute_peer_weights, ("query", "key", "key_padding_mask")),
}


def _anchor_strengths(module: nn.Module) -> Dict[str, Tensor]:
    """Return the learned parameters [H] of anchored attention, keyed by name, or {} for other modules."""
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
