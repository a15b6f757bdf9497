"""Base class of the attention mechanisms from other papers ("peers").

A subclass computes attention for queries, keys and values that are already projected and split into heads.

Shapes in this package: batch size B, H heads, T positions or queries, S keys, model width C, and head width K
= C / H. Masks are True at padding, and at keys that a query must not attend to.
"""

import copy
from typing import Any, Callable, ClassVar, Dict, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq.incremental_decoding_utils import with_incremental_state
from fairseq.modules import FairseqDropout
from fairseq.modules.quant_noise import quant_noise
from luna_fairseq.errors import InputError
from luna_fairseq.models.fairseq_layers import IncrementalState
from luna_fairseq.modules.heads import (
    ProjectingAttention,
    build_output_projection,
    build_projection,
    check_heads,
    dropout_probability,
    merge_heads,
    split_heads,
)

BIDIRECTIONAL, CAUSAL, CROSS = ROLES = ("bidirectional", "causal", "cross")
# Options that select the attention of each role in a layer.
OPTIONS = {BIDIRECTIONAL: "--attention", CAUSAL: "--decoder-attention", CROSS: "--cross-attention"}
Parts = Tuple[Tensor, ...]
State = Dict[str, Tensor]
# Padding mask [B, S], alone or with the positions [B, T] and the origins [B, T] of the target tokens.
KeyMask = Union[Tensor, Tuple[Optional[Tensor], ...]]


def split_target_places(key_padding_mask: Optional[KeyMask]) -> Tuple[Optional[Tensor], State]:
    """Split the mask argument of cross-attention into the padding mask and the positions of target tokens.

    ``key_padding_mask`` is a padding mask [B, S], or a tuple of this mask and the positions and origins
    [B, T] of target tokens. The positions are for a diagonal prior, a bias toward source tokens near an
    expected position. :class:`luna_fairseq.anchored.geometry.TargetPlaces` describes them.

    Return the padding mask (or None), and a dictionary of the positions and origins that are not None, with
    the keys ``target_place`` and ``target_origin``.
    """
    names = ("target_place", "target_origin")
    mask, *places = key_padding_mask if isinstance(key_padding_mask, tuple) else (key_padding_mask,)
    target = {name: x for name, x in zip(names, places) if x is not None}
    return None if mask is None else mask.bool(), target


@with_incremental_state
class PeerAttention(ProjectingAttention):
    """Base class of the attention mechanisms, with the interface of fairseq's MultiheadAttention.

    Each instance has one role: bidirectional self-attention, causal self-attention or cross-attention.
    In the methods, *parts* are the projected input tensors: by default, queries, keys and values [B, H, T, K]
    for batch size B, H heads of width K and T positions.

    Args:
        embed_dim: width of queries, keys, values and output.
        num_heads: number of heads; must divide ``embed_dim``.
        role: "bidirectional", "causal" or "cross"; must be in ``roles``.
        options: a :class:`luna_fairseq.peers.PeerOptions`, or an object with the same attributes.
        max_positions: maximum sequence length, for attention mechanisms whose parameters depend on it.
        dropout: dropout probability of attention weights, ignored if no weights are computed.
        q_noise: fairseq's quantization noise on the projections. 0 means no noise.
        qn_block_size: block size of the quantization noise.

    Attributes:
        projections: names of the projections, except for the output projection.
        needs_left_alignment: True if the attention counts positions from the first token. Left padding is
            then moved to the right before attention.
        has_value_weights: True if the output of each head is a weighted sum of the values.
        watcher: callback invoked with (attention, query, key, key_padding_mask) at the start of each forward
            pass, for example to record attention weights.
    """

    name: ClassVar[str]
    roles: ClassVar[Tuple[str, ...]] = ROLES
    projections: Tuple[str, ...] = ("q", "k", "v")
    needs_left_alignment: bool = False
    has_value_weights: ClassVar[bool] = True

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        role: str,
        options: Any,
        max_positions: int = 1024,
        dropout: float = 0.0,
        q_noise: float = 0.0,
        qn_block_size: int = 8,
    ):
        super().__init__()
        check_heads(embed_dim, num_heads, "attention heads")
        if role not in self.roles:
            raise InputError(
                f"{OPTIONS[role]} {self.name} is not possible, because {self.name} attention has no {role} "
                f"form. Use another attention, such as {OPTIONS[role]} softmax."
            )
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.role, self.max_positions = role, max_positions
        self.dropout_module = FairseqDropout(dropout, module_name=type(self).__name__)
        self.watcher: Optional[Callable[..., None]] = None
        for name in self.projections:
            self.add_module(f"{name}_proj", build_projection(embed_dim))
        self.out_proj = build_output_projection(embed_dim)
        self.build(options)
        for child in self.children():
            if isinstance(child, nn.Linear):
                quant_noise(child, q_noise, qn_block_size)

    # Methods that subclasses override

    def build(self, options: Any) -> None:
        """Create the parameters that the options require besides the projections. By default, create none."""

    def project(self, x: Tensor) -> Parts:
        """Project an input [T, B, C] to the tensors that :meth:`attend` takes.

        By default, these are queries, keys and values [B, H, T, K].
        """
        return self.project_heads(x, *self.projections)

    def attend(self, *parts: Any, **padding_mask: Any) -> Tensor:
        """Compute the output [B, H, T, K] of self-attention from the tensors that :meth:`project` returns.

        The keyword argument ``padding_mask`` is a mask [B, T], True at padding, or None.
        """
        raise NotImplementedError

    def attend_naively(self, *parts: Any, **padding_mask: Any) -> Tensor:
        """Compute the output of :meth:`attend` directly from its formula, without dropout, as a reference."""
        raise NotImplementedError

    def project_context(self, context: Tensor) -> Parts:
        """Project a context [S, B, C] to the tensors that :meth:`cache_context` takes.

        By default, these are keys and values [B, H, S, K].
        """
        return self.project_heads(context, "k", "v")

    def cache_context(self, *parts: Any, **padding_mask: Any) -> State:
        """Compute a dictionary of tensors [B, ...] to cache from the results of :meth:`project_context`.

        The keyword argument ``padding_mask`` is a mask [B, S], True at padding of the context, or None.
        """
        raise NotImplementedError

    def read_context(
        self, query: Tensor, memory: State, need_weights: bool = False
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Compute cross-attention from a decoder input [T, B, C] to the context cached in ``memory``.

        Return the output [B, H, T, K] and the weights [B, H, T, S]. The weights are None if they are not
        requested or not available.
        """
        raise NotImplementedError

    def attend_incrementally(
        self, parts: Parts, padding_mask: Optional[Tensor], state: Optional[State]
    ) -> Tuple[Tensor, State]:
        """Compute causal attention for T new positions, given the state after all earlier positions.

        ``parts`` are the projected tensors of the new positions, and the state is None at the start. This
        default implementation stores the projected tensors of all earlier positions, and recomputes attention
        at all positions in each call. Return the output [B, H, T, K] and the new state.
        """
        new, padding_mask = parts[0].size(2), materialize_padding(padding_mask, parts[0])
        if state is not None:
            parts = tuple(torch.cat([state[f"part{i}"], part], dim=2) for i, part in enumerate(parts))
            padding_mask = torch.cat([state["padding"], padding_mask], dim=1)
        state = {"padding": padding_mask, **{f"part{i}": part for i, part in enumerate(parts)}}
        return self.attend_left_aligned(parts, padding_mask)[:, :, -new:], state

    # Methods shared by all attentions

    def project_heads(self, x: Tensor, *projections: str) -> Parts:
        """Apply the named projections, such as "q", and split each result into heads [B, H, T, K]."""
        return tuple(split_heads(getattr(self, f"{name}_proj")(x), self.num_heads) for name in projections)

    def check_length(self, T: int) -> None:
        """Raise InputError if a sequence of T tokens exceeds the maximum length of the attention."""
        if T > self.max_positions:
            raise InputError(
                f"Expected at most {self.max_positions} tokens for {self.name} attention, got {T}. Shorten "
                "the sequence, or train with more positions."
            )

    def future_mask(self, x: Tensor) -> Optional[Tensor]:
        """Return a mask [T, T] for x [B, H, T, K], True at later keys, or None if attention is not causal."""
        T = x.size(2)
        return torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1) if self.role == CAUSAL else None

    @property
    def dropout(self) -> float:
        """Current dropout probability of the attention weights. It is 0 in evaluation mode."""
        return dropout_probability(self.dropout_module)

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor] = None,
        value: Optional[Tensor] = None,
        key_padding_mask: Optional[KeyMask] = None,
        incremental_state: Optional[IncrementalState] = None,
        need_weights: bool = False,
        static_kv: bool = False,
        attn_mask: Optional[Tensor] = None,
        need_head_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Compute attention for a batch of sequences, with the arguments of fairseq's MultiheadAttention.

        The query [T, B, C] has only the new positions if ``incremental_state`` is given. ``key`` is the
        context [S, B, C] of cross-attention. ``key`` is ignored in self-attention, and if
        ``incremental_state`` already stores the context. ``key_padding_mask`` is a mask [B, S], or a tuple of
        this mask and the target positions for a diagonal prior (:func:`split_target_places`). ``value``,
        ``static_kv`` and ``attn_mask`` are ignored.

        Return the output [T, B, C] and the attention weights. The weights are [B, T, S], or [H, B, T, S] with
        ``need_head_weights``. They are None if they are not requested or not available.
        """
        weights: Optional[Tensor] = None
        padding_mask, target = split_target_places(key_padding_mask)
        if self.watcher is not None:
            self.watcher(self, query, key, (padding_mask, *target.values()) if target else padding_mask)
        saved = self.get_incremental_state(incremental_state, "attention")
        if self.role == CROSS:
            if saved is None:
                saved = self.cache_context(*self.project_context(key), padding_mask=padding_mask)
                self.set_incremental_state(incremental_state, "attention", saved)
            output, weights = self.read_context(query, {**saved, **target}, need_weights or need_head_weights)
        elif incremental_state is not None:
            output, state = self.attend_incrementally(self.project(query), padding_mask, saved)
            self.set_incremental_state(incremental_state, "attention", state)
        else:
            output = self.attend_left_aligned(self.project(query), padding_mask)
        if weights is not None:
            weights = weights.transpose(0, 1) if need_head_weights else weights.mean(dim=1)
        return self.out_proj(merge_heads(output).to(query.dtype)), weights

    def value_weights(
        self, query: Tensor, key: Optional[Tensor] = None, key_padding_mask: Optional[KeyMask] = None
    ) -> Tensor:
        """Compute the attention weights [B, H, T, S] of each head, in quadratic time and memory.

        If the mechanism computes no weight matrix, the values are replaced with the rows of the identity
        matrix, so that the output is the weight matrix. For an attention in half precision, the weights are
        computed in float32. Raise InputError if the output is not a weighted sum of the values.
        """
        if not self.has_value_weights:
            raise InputError(
                f"The output of {self.name} attention is no weighted sum of values. Use another attention."
            )
        if query.dtype in (torch.float16, torch.bfloat16):
            exact = copy.deepcopy(self).float()  # the formulas overflow in float16
            return exact.value_weights(query.float(), None if key is None else key.float(), key_padding_mask)
        padding_mask, target = split_target_places(key_padding_mask)
        if self.role != CROSS:
            # The values are the parts of the projections "v" and "global_v".
            parts = list(self.project(query))
            for i, name in enumerate(self.projections):
                if name.endswith("v"):
                    parts[i] = identity_values(parts[i])
            return self.attend_left_aligned(tuple(parts), padding_mask, self.attend_naively)
        k, v, *extra = self.project_context(key)
        memory = self.cache_context(k, v, *extra, padding_mask=padding_mask)
        _, weights = self.read_context(query, {**memory, **target}, need_weights=True)
        if weights is None:
            memory = self.cache_context(k, identity_values(v), *extra, padding_mask=padding_mask)
            weights, _ = self.read_context(query, memory)
        return weights

    def attend_left_aligned(
        self, parts: Parts, padding_mask: Optional[Tensor], attend: Optional[Callable[..., Tensor]] = None
    ) -> Tensor:
        """Compute self-attention with the method ``attend`` (default: :meth:`attend`).

        If the attention counts positions from the first token, left padding is moved to the right first, and
        padding beyond ``max_positions`` is not passed on. The output [B, H, T, K] is aligned like the input.
        """
        attend = attend or self.attend
        if not self.needs_left_alignment or padding_mask is None:
            return attend(*parts, padding_mask=padding_mask)
        left = count_left_padding(padding_mask)
        moved_mask = roll_left(padding_mask, left)
        T = end = moved_mask.size(1)
        if T > self.max_positions and moved_mask[:, self.max_positions :].all():
            end = self.max_positions
        moved = (roll_left(part, left, dim=2)[:, :, :end] for part in parts)
        output = attend(*moved, padding_mask=moved_mask[:, :end])
        if end < T:
            output = F.pad(output, (0, 0, 0, T - end))
        return roll_left(output, -left, dim=2)

    def _get_input_buffer(self, incremental_state: Optional[IncrementalState]) -> State:
        """Return an empty dictionary. fairseq's decoder layer calls this method, but ignores the result."""
        return {}

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Reorder the decoding state for beam search: hypothesis i continues hypothesis ``new_order[i]``."""
        state = self.get_incremental_state(incremental_state, "attention")
        if state is not None:
            moved = {name: part.index_select(0, new_order) for name, part in state.items()}
            self.set_incremental_state(incremental_state, "attention", moved)


def count_left_padding(padding_mask: Tensor) -> Tensor:
    """Return the number [B, 1] of padding positions before the first token of each sequence."""
    return padding_mask.long().cumprod(dim=1).sum(dim=1, keepdim=True)


def roll_left(x: Tensor, shift: Tensor, dim: int = 1) -> Tensor:
    """Roll each sequence of a batch to the left along ``dim``. Negative shifts roll to the right.

    ``shift`` [B, 1] is the number of positions by which each sequence is rolled.
    """
    positions = (torch.arange(x.size(dim), device=x.device) + shift) % x.size(dim)
    shape = [1] * x.dim()
    shape[0], shape[dim] = positions.shape
    return x.gather(dim, positions.view(shape).expand_as(x))


def identity_values(v: Tensor) -> Tensor:
    """Return the identity matrix as values [B, H, S, S] for S keys.

    With these values in place of v [B, H, S, K], the output of attention is the matrix of attention weights.
    """
    S = v.size(2)
    return torch.eye(S, dtype=v.dtype, device=v.device).expand(*v.shape[:2], S, S)


def normalize_vectors(x: Tensor) -> Tensor:
    """Divide vectors [..., K] by their length, in float32 or higher precision. Zero vectors stay zero."""
    # In float16, the smallest divisor of F.normalize rounds to 0.
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1).to(x.dtype)


def materialize_padding(padding_mask: Optional[Tensor], x: Tensor) -> Tensor:
    """Return ``padding_mask``. If it is None, return a mask [B, T] for x [B, H, T, K] that is all False."""
    return x.new_zeros(x.size(0), x.size(2), dtype=torch.bool) if padding_mask is None else padding_mask


def combine_masks(padding_mask: Optional[Tensor], pair_mask: Optional[Tensor] = None) -> Optional[Tensor]:
    """Combine a padding mask [B, S] with a mask [..., T, S] of query-key pairs.

    The result broadcasts to [B, H, T, S]. It is True where either mask is True, and None if both are None.
    """
    if padding_mask is None:
        return pair_mask
    key_mask = padding_mask[:, None, None, :]
    return key_mask if pair_mask is None else pair_mask | key_mask
