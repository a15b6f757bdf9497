"""Base class of all peer attentions: projections, the interface of fairseq's attention, and decoding.

A subclass only computes attention for queries, keys and values that are already projected and split into
heads. In all masks, True means padding or a pair of positions that must not attend.

Shapes in this file: batch size B, H heads, T queries, S keys, model width C, and head width K = C / H.
"""

from typing import Any, Callable, ClassVar, Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq.incremental_decoding_utils import with_incremental_state
from luna_fairseq.errors import InputError
from luna_fairseq.models.fairseq_layers import IncrementalState, use_fairseq_layers
from luna_fairseq.modules.heads import (
    ProjectingAttention,
    build_output_projection,
    build_projection,
    check_heads,
    dropout_probability,
    merge_heads,
    split_heads,
)

BIDIRECTIONAL, CAUSAL, CROSS = FORMS = ("bidirectional", "causal", "cross")
# Options that select the attention of each form.
OPTIONS = {BIDIRECTIONAL: "--attention", CAUSAL: "--decoder-attention", CROSS: "--cross-attention"}
Parts = Tuple[Tensor, ...]
State = Dict[str, Tensor]


@with_incremental_state
class PeerAttention(ProjectingAttention):
    """Base class of peer attentions, with the interface of fairseq's MultiheadAttention.

    Peer attentions are efficient attention mechanisms from other papers, used as baselines for Luna. Each
    instance computes one form: bidirectional self-attention, causal self-attention or cross-attention.

    Args:
        embed_dim: width of queries, keys, values and output.
        num_heads: number of heads.
        form: "bidirectional", "causal" or "cross"; must be in ``forms``.
        options: namespace with the fields of :class:`luna_fairseq.peers.PeerOptions`.
        max_positions: maximum sequence length, used by attentions whose parameters depend on the length
            (default: 1,024).
        dropout: dropout probability of attention weights (default: 0). Attentions that do not compute weights
            ignore it.
        q_noise: fairseq's quantization noise on the projections (default: 0, none).
        qn_block_size: block size of the quantization noise (default: 8).

    Raises:
        InputError: The attention does not support this form, or ``num_heads`` does not divide ``embed_dim``.

    Attributes:
        name: name of the attention on the command line.
        forms: supported forms.
        projections: names of the projections, except for the output projection.
        needs_left_alignment: True if the attention counts positions from the first token. Left padding is
            then moved to the right before attention.
        has_value_weights: True if the output of each head is a weighted sum of the values.
        watcher: callback invoked with (attention, query, key, key_padding_mask) at the start of each forward
            pass, for example to record attention weights (default: None).
    """

    name: ClassVar[str]
    forms: ClassVar[Tuple[str, ...]] = FORMS
    projections: Tuple[str, ...] = ("q", "k", "v")
    needs_left_alignment: bool = False
    has_value_weights: ClassVar[bool] = True

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        form: str,
        options: Any,
        max_positions: int = 1024,
        dropout: float = 0.0,
        q_noise: float = 0.0,
        qn_block_size: int = 8,
    ):
        super().__init__()
        check_heads(embed_dim, num_heads, "attention heads")
        if form not in self.forms:
            raise InputError(
                f"{OPTIONS[form]} {self.name} is not possible, because {self.name} attention has no {form} "
                f"form. Use another attention, such as {OPTIONS[form]} softmax."
            )
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.form, self.max_positions = form, max_positions
        self.dropout_module = nn.Dropout(dropout)
        self.watcher: Optional[Callable[..., None]] = None
        for name in self.projections:
            self.add_module(f"{name}_proj", build_projection(embed_dim))
        self.out_proj = build_output_projection(embed_dim)
        self.build(options)
        use_fairseq_layers(self, self.__class__.__name__, q_noise, qn_block_size)

    # Methods that subclasses override

    def build(self, options: Any) -> None:
        """Create the parameters and settings of this attention, except for the projections.

        Subclasses override this method. By default, it does nothing.

        Args:
            options: namespace with the fields of :class:`luna_fairseq.peers.PeerOptions`.
        """

    def project(self, x: Tensor) -> Parts:
        """Project the input to the tensors that :meth:`attend` takes as arguments.

        Args:
            x: input [T, B, C]: T positions, batch size B, and model width C.

        Returns:
            A tuple of tensors. By default these are queries, keys and values, each [B, H, T, K]: H heads of
            width K.
        """
        return self.project_heads(x, *self.projections)

    def attend(self, *parts: Any, **padding_mask: Any) -> Tensor:
        """Compute bidirectional or causal self-attention, depending on ``form``.

        Subclasses must implement this method.

        Args:
            parts: projected input, by default queries, keys and values, each [B, H, T, K]: batch size B, H
                heads, T positions, and head width K.
            padding_mask: keyword argument, mask [B, T], True at padding (None if there is no padding).

        Returns:
            Output [B, H, T, K] of each head.
        """
        raise NotImplementedError

    def attend_naively(self, *parts: Any, **padding_mask: Any) -> Tensor:
        """Compute the output of :meth:`attend` from materialized attention weights, as a reference for tests.

        Subclasses must implement this method.

        Args:
            parts: projected input, by default queries, keys and values, each [B, H, T, K]: batch size B, H
                heads, T positions, and head width K.
            padding_mask: keyword argument, mask [B, T], True at padding (None if there is no padding).

        Returns:
            Output [B, H, T, K] of each head.
        """
        raise NotImplementedError

    def project_context(self, context: Tensor) -> Parts:
        """Project a context to the tensors that :meth:`cache_context` takes as arguments.

        Args:
            context: context [S, B, C]: S tokens, batch size B, and model width C.

        Returns:
            A tuple of tensors. By default these are keys and values, each [B, H, S, K]: H heads of width K.
        """
        return self.project_heads(context, "k", "v")

    def cache_context(self, *parts: Any, **padding_mask: Any) -> State:
        """Precompute the context tensors of cross-attention, once for all decoding steps.

        Subclasses with cross-attention must implement this method.

        Args:
            parts: projected context, by default keys and values, each [B, H, S, K]: batch size B, H heads, S
                tokens, and head width K.
            padding_mask: keyword argument, mask [B, S], True at padding (None if there is no padding).

        Returns:
            Dictionary of tensors, each [B, ...], which is stored in the decoding state.
        """
        raise NotImplementedError

    def read_context(
        self, query: Tensor, memory: State, need_weights: bool = False
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Attend from the decoder input to a cached context.

        Subclasses with cross-attention must implement this method.

        Args:
            query: decoder input [T, B, C]: T positions, batch size B, and model width C.
            memory: cached tensors of the context, such as its keys and values, as returned by
                :meth:`cache_context`.
            need_weights: return the attention weights, if available (default: False).

        Returns:
            - output [B, H, T, K] of each head: H heads of width K.
            - attention weights [B, H, T, S] over the S tokens of the context (None if not available).
        """
        raise NotImplementedError

    def attend_incrementally(
        self, parts: Parts, padding_mask: Optional[Tensor], state: Optional[State]
    ) -> Tuple[Tensor, State]:
        """Compute causal attention for new positions, given the state after all previous positions.

        By default, the state holds the projections of all previous positions, and each call recomputes
        attention for all positions. Subclasses override this method if there is a faster way.

        Args:
            parts: projected tensors of the new positions, by default queries, keys and values, each
                [B, H, T, K]. Batch size B, H heads, T new positions, and head width K.
            padding_mask: mask [B, T] of the new positions, True at padding (None if there is no padding).
            state: dictionary of tensors returned by the previous call (None at the start).

        Returns:
            - output [B, H, T, K] of each head at the new positions.
            - state after the new positions.
        """
        new, padding_mask = parts[0].size(2), materialize_padding(padding_mask, parts[0])
        if state is not None:
            parts = tuple(torch.cat([state[f"part{i}"], part], dim=2) for i, part in enumerate(parts))
            padding_mask = torch.cat([state["padding"], padding_mask], dim=1)
        state = {"padding": padding_mask, **{f"part{i}": part for i, part in enumerate(parts)}}
        return self.attend_left_aligned(parts, padding_mask)[:, :, -new:], state

    # Methods shared by all attentions

    def project_heads(self, x: Tensor, *projections: str) -> Parts:
        """Apply named projections to the input, and split each result into heads.

        Args:
            x: input [T, B, C]: T positions, batch size B, and model width C.
            projections: names of the projections, such as "q" for ``self.q_proj``.

        Returns:
            One tensor [B, H, T, K] per projection: H heads of width K.
        """
        return tuple(split_heads(getattr(self, f"{name}_proj")(x), self.num_heads) for name in projections)

    def check_length(self, T: int) -> None:
        """Raise an error if a sequence is longer than the parameters of this attention allow.

        Args:
            T: number of tokens.

        Raises:
            InputError: T exceeds ``max_positions``.
        """
        if T > self.max_positions:
            raise InputError(
                f"Expected at most {self.max_positions} tokens for {self.name} attention, got {T}. Shorten "
                "the sequence, or train with more positions."
            )

    def future_mask(self, x: Tensor) -> Optional[Tensor]:
        """Return a mask of later positions for causal attention, or None for the other forms.

        Args:
            x: tensor [B, H, T, K] for batch size B and H heads, which determines the number of positions T
                and the device.

        Returns:
            A mask [T, T], True at pairs of a query and a later key (None if ``form`` is not "causal").
        """
        T = x.size(2)
        return torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1) if self.form == CAUSAL else None

    @property
    def dropout(self) -> float:
        """Current dropout probability of attention weights, which is 0 in evaluation mode."""
        return dropout_probability(self.dropout_module)

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor] = None,
        value: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[IncrementalState] = None,
        need_weights: bool = False,
        static_kv: bool = False,
        attn_mask: Optional[Tensor] = None,
        need_head_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Compute attention for a batch of sequences, with the arguments of fairseq's MultiheadAttention.

        Shapes: T queries, S tokens in the context, batch size B, model width C, and H heads.

        Args:
            query: input [T, B, C] of self-attention, or queries [T, B, C] of cross-attention.
            key: context [S, B, C] of cross-attention. Ignored in self-attention, and if ``incremental_state``
                already stores the context (default: None).
            value: ignored; values are computed from the key (default: None).
            key_padding_mask: mask [B, S], True at padding (default: None, no padding).
            incremental_state: fairseq's dictionary of decoding states. If given, ``query`` holds only the new
                positions (default: None, all positions at once).
            need_weights: return the attention weights, averaged over heads, if available (default: False).
            static_kv: ignored, because the context of cross-attention never changes during decoding (default:
                False).
            attn_mask: ignored, because causal attention masks later positions itself (default: None).
            need_head_weights: return the attention weights of each head (default: False).

        Returns:
            - output [T, B, C].
            - weights [B, T, S], or [H, B, T, S] if ``need_head_weights`` is True (None if they are not
              computed).
        """
        weights: Optional[Tensor] = None
        padding_mask = None if key_padding_mask is None else key_padding_mask.bool()
        if self.watcher is not None:
            self.watcher(self, query, key, padding_mask)
        saved = self.get_incremental_state(incremental_state, "attention")
        if self.form == CROSS:
            if saved is None:
                saved = self.cache_context(*self.project_context(key), padding_mask=padding_mask)
                self.set_incremental_state(incremental_state, "attention", saved)
            output, weights = self.read_context(query, saved, need_weights or need_head_weights)
        elif incremental_state is not None:
            output, state = self.attend_incrementally(self.project(query), padding_mask, saved)
            self.set_incremental_state(incremental_state, "attention", state)
        else:
            output = self.attend_left_aligned(self.project(query), padding_mask)
        if weights is not None:
            weights = weights.transpose(0, 1) if need_head_weights else weights.mean(dim=1)
        return self.out_proj(merge_heads(output).to(query.dtype)), weights

    def value_weights(
        self, query: Tensor, key: Optional[Tensor] = None, key_padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        """Compute the weights of the values, with time and memory quadratic in the sequence length.

        The output of a head is the weighted sum of the values with these weights. If an attention computes no
        weight matrix, each value is replaced with a unit vector. The output is then the weight matrix.

        Shapes: T queries, S keys, batch size B, model width C, and H heads.

        Args:
            query: input [T, B, C] of self-attention, or queries [T, B, C] of cross-attention.
            key: context [S, B, C] of cross-attention. Ignored in self-attention (default: None).
            key_padding_mask: mask [B, S], True at padding (default: None, no padding).

        Returns:
            Weights [B, H, T, S] of the values of each head.

        Raises:
            InputError: The output is not a weighted sum of values (``has_value_weights`` is False).
        """
        if not self.has_value_weights:
            raise InputError(
                f"The output of {self.name} attention is no weighted sum of values. Use another attention."
            )
        if self.form != CROSS:
            # The values are the parts of the projections "v" and "global_v".
            parts = list(self.project(query))
            for i, name in enumerate(self.projections):
                if name.endswith("v"):
                    parts[i] = unit_vectors(parts[i])
            return self.attend_left_aligned(tuple(parts), key_padding_mask, self.attend_naively)
        k, v, *extra = self.project_context(key)
        memory = self.cache_context(k, v, *extra, padding_mask=key_padding_mask)
        _, weights = self.read_context(query, memory, need_weights=True)
        if weights is None:
            memory = self.cache_context(k, unit_vectors(v), *extra, padding_mask=key_padding_mask)
            weights, _ = self.read_context(query, memory)
        return weights

    def attend_left_aligned(
        self, parts: Parts, padding_mask: Optional[Tensor], attend: Optional[Callable[..., Tensor]] = None
    ) -> Tensor:
        """Compute self-attention, on left-aligned sequences if this attention requires them.

        If ``needs_left_alignment`` is True, left padding is moved to the right, so that the first token is at
        position 0. The output is shifted back.

        Args:
            parts: projected input, by default queries, keys and values, each [B, H, T, K]: batch size B, H
                heads, T positions, and head width K.
            padding_mask: mask [B, T], True at padding (None if there is no padding).
            attend: function to call, :meth:`attend` or :meth:`attend_naively` (default: None,
                :meth:`attend`).

        Returns:
            Output [B, H, T, K] of each head.
        """
        attend = attend or self.attend
        if not self.needs_left_alignment or padding_mask is None:
            return attend(*parts, padding_mask=padding_mask)
        left = count_left_padding(padding_mask)
        moved = (roll_left(part, left, dim=2) for part in parts)
        return roll_left(attend(*moved, padding_mask=roll_left(padding_mask, left)), -left, dim=2)

    def _get_input_buffer(self, incremental_state: Optional[IncrementalState]) -> State:
        """Return an empty dictionary in place of the decoding state of fairseq's MultiheadAttention.

        fairseq's decoder layer calls this method, but does not need the state of peer attentions.

        Args:
            incremental_state: ignored.

        Returns:
            An empty dictionary.
        """
        return {}

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Reorder the decoding state after a beam search step. fairseq's generator calls this method.

        Args:
            incremental_state: fairseq's dictionary of decoding states, updated in place.
            new_order: for each of the n new hypotheses, index [n] of the hypothesis that it continues.
        """
        state = self.get_incremental_state(incremental_state, "attention")
        if state is not None:
            moved = {name: part.index_select(0, new_order) for name, part in state.items()}
            self.set_incremental_state(incremental_state, "attention", moved)


def count_left_padding(padding_mask: Tensor) -> Tensor:
    """Count the padding positions before the first token of each sequence.

    Args:
        padding_mask: mask [B, T] for B sequences of T positions, True at padding.

    Returns:
        Counts [B, 1].

    Example:
        >>> count_left_padding(torch.tensor([[True, True, False, True]]))
        tensor([[2]])
    """
    return padding_mask.long().cumprod(dim=1).sum(dim=1, keepdim=True)


def roll_left(x: Tensor, shift: Tensor, dim: int = 1) -> Tensor:
    """Roll each sequence of a batch to the left by its own shift.

    Args:
        x: batch [B, ...] of B sequences.
        shift: number of positions [B, 1] per sequence; negative numbers roll to the right.
        dim: dimension of the positions (default: 1).

    Returns:
        The rolled tensor, with the same shape as ``x``.

    Example:
        >>> roll_left(torch.tensor([[0, 0, 5, 6]]), torch.tensor([[2]]))
        tensor([[5, 6, 0, 0]])
    """
    positions = (torch.arange(x.size(dim), device=x.device) + shift) % x.size(dim)
    shape = [1] * x.dim()
    shape[0], shape[dim] = positions.shape
    return x.gather(dim, positions.view(shape).expand_as(x))


def unit_vectors(v: Tensor) -> Tensor:
    """Return values for which the attention output is the matrix of attention weights.

    The value of position j is the j-th unit vector. The weighted sum of these values is the vector of
    weights.

    Args:
        v: values [B, H, S, K] for batch size B, H heads and S positions, which determine the shape, dtype and
            device.

    Returns:
        Identity matrices [B, H, S, S].
    """
    S = v.size(2)
    return torch.eye(S, dtype=v.dtype, device=v.device).expand(*v.shape[:2], S, S)


def materialize_padding(padding_mask: Optional[Tensor], x: Tensor) -> Tensor:
    """Return a padding mask as a tensor, replacing None with a mask of False.

    Args:
        padding_mask: mask [B, T], True at padding (None if there is no padding).
        x: tensor [B, H, T, K] for batch size B, H heads and T positions, which determines the shape and the
            device.

    Returns:
        Mask [B, T], True at padding.
    """
    return x.new_zeros(x.size(0), x.size(2), dtype=torch.bool) if padding_mask is None else padding_mask


def combine_masks(padding_mask: Optional[Tensor], pair_mask: Optional[Tensor] = None) -> Optional[Tensor]:
    """Combine a key padding mask with a mask of query-key pairs.

    Args:
        padding_mask: mask [B, S] for batch size B and S keys, True at padding (None if there is no padding).
        pair_mask: mask [..., T, S] for T queries, True if the query must not attend to the key (default:
            None, all pairs are allowed).

    Returns:
        Mask that broadcasts to [B, H, T, S] for H heads, or None if both masks are None.
    """
    if padding_mask is None:
        return pair_mask
    key_mask = padding_mask[:, None, None, :]
    return key_mask if pair_mask is None else pair_mask | key_mask
