"""What every attention here has in common: projections, the call that fairseq's layers make, and decoding.

An attention says what it computes for heads that are projected already; everything else is here. Letters as
in ops/README.md, masks are True at what is left out.
"""

from typing import Any, ClassVar, Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq.incremental_decoding_utils import with_incremental_state
from luna_fairseq.errors import InputError
from luna_fairseq.models.fairseq_layers import IncrementalState, use_fairseq_layers
from luna_fairseq.modules.heads import (
    ProjectingAttention,
    check_heads,
    dropout_probability,
    merge_heads,
    output_projection,
    projection,
    split_heads,
)

BIDIRECTIONAL, CAUSAL, CROSS = FORMS = ("bidirectional", "causal", "cross")
# The option that chooses the attention of a form.
OPTIONS = {BIDIRECTIONAL: "--attention", CAUSAL: "--decoder-attention", CROSS: "--cross-attention"}
Parts = Tuple[Tensor, ...]
State = Dict[str, Tensor]


@with_incremental_state
class PeerAttention(ProjectingAttention):
    """An attention in one of its forms, called as fairseq's MultiheadAttention is.

    Args:
        embed_dim: C, width of everything
        num_heads: H
        form: one of ``forms``
        options: namespace with the fields of this attention's options
        max_positions: longest sequence, for those whose parameters depend on it (default: 1,024)
        dropout: probability with which a weight is dropped, where there are weights (default: 0)
        q_noise, qn_block_size: fairseq's quantisation noise on the projections (default: none)

    Raises:
        InputError: the attention has no such form, or the width is not divisible by the number of heads
    """

    name: ClassVar[str]
    forms: ClassVar[Tuple[str, ...]] = FORMS
    # The projections that are there besides that of the output.
    projections: Tuple[str, ...] = ("q", "k", "v")
    # Places count from the first real token: what is padded on the left is moved to the right meanwhile.
    from_start: bool = False
    # The output is a sum of values with weights, which a report can show.
    weighs_values: ClassVar[bool] = True

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
                f"{OPTIONS[form]} {self.name}: it has no {form} form, only {' and '.join(self.forms)}; "
                f"give {OPTIONS[form]} another, such as softmax"
            )
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.form, self.max_positions = form, max_positions
        self.dropout_module = nn.Dropout(dropout)
        for name in self.projections:
            self.add_module(f"{name}_proj", projection(embed_dim))
        self.out_proj = output_projection(embed_dim)
        self.build(options)
        use_fairseq_layers(self, self.__class__.__name__, q_noise, qn_block_size)

    # What an attention defines

    def build(self, options: Any) -> None:
        """Parameters and settings besides the projections."""

    def project(self, x: Tensor) -> Parts:
        """What :meth:`attend` reads of x [T, B, C], each part [B, *, T, *]: the heads of q, k, v."""
        return self.heads(x, *self.projections)

    def attend(self, *parts: Any, **padding: Any) -> Tensor:
        """Bidirectional or causal self-attention, as ``form`` says.

        Args:
            parts: what :meth:`project` returns
            padding: under this name, [B, T] or None

        Returns:
            [B, H, T, K]
        """
        raise NotImplementedError

    def define(self, *parts: Any, **padding: Any) -> Tensor:
        """What :meth:`attend` computes, plainly: with whole matrices of weights. For tests."""
        raise NotImplementedError

    def digest(self, context: Tensor, padding: Optional[Tensor]) -> State:
        """What cross-attention keeps of context [S, B, C], tensors [B, ..]; ``padding`` [B, S] or None."""
        raise NotImplementedError

    def read(
        self, query: Tensor, memory: State, need_weights: bool = False
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Output [B, H, T, K] of queries [T, B, C] to a digested context; weights [B, H, T, S], or None."""
        raise NotImplementedError

    def go_on(self, parts: Parts, padding: Optional[Tensor], state: Optional[State]) -> Tuple[Tensor, State]:
        """Causal attention of positions after those in ``state``, and the state after them.

        Here the state is all that was projected so far, and attention is computed over all of it again.
        """
        new, padding = parts[0].size(2), given_padding(padding, parts[0])
        if state is not None:
            parts = tuple(torch.cat([state[f"part{i}"], part], dim=2) for i, part in enumerate(parts))
            padding = torch.cat([state["padding"], padding], dim=1)
        state = {"padding": padding, **{f"part{i}": part for i, part in enumerate(parts)}}
        return self.attend_from_start(parts, padding)[:, :, -new:], state

    # What is the same for all

    def heads(self, x: Tensor, *projections: str) -> Parts:
        """The heads [B, H, T, K] of each of these projections of x [T, B, C]."""
        return tuple(split_heads(getattr(self, f"{name}_proj")(x), self.num_heads) for name in projections)

    def check_length(self, T: int) -> None:
        """Raise InputError where parameters depend on the longest sequence and this one is longer."""
        if T > self.max_positions:
            raise InputError(
                f"a sequence has {T} tokens, and {self.name} ends at {self.max_positions}: "
                "shorten it, or train with more positions"
            )

    def later(self, x: Tensor) -> Optional[Tensor]:
        """In a causal form, what each position of x [B, H, T, K] must not see, as it comes later [T, T]."""
        T = x.size(2)
        return torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1) if self.form == CAUSAL else None

    @property
    def dropout(self) -> float:
        """The probability to drop a weight with now."""
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
        """
        Args:
            query: [T, B, C]
            key: the context of cross-attention [S, B, C], not read when ``incremental_state`` has it; in
                self-attention it is the query
            value: not read: it is the key
            key_padding_mask: [B, S], True at padding
            incremental_state: fairseq's store for decoding
            need_weights: return weights, if this is cross-attention that has any
            static_kv: not read: it is what cross-attention is
            attn_mask: not read: a causal form leaves out what is to come by itself
            need_head_weights: the weights of every head, not their mean

        Returns:
            output [T, B, C]; weights [B, T, S], or [H, B, T, S] of every head, or None
        """
        weights: Optional[Tensor] = None
        padding = None if key_padding_mask is None else key_padding_mask.bool()
        saved = self.get_incremental_state(incremental_state, "attention")
        if self.form == CROSS:
            if saved is None:
                saved = self.digest(key, padding)
                self.set_incremental_state(incremental_state, "attention", saved)
            output, weights = self.read(query, saved, need_weights or need_head_weights)
        elif incremental_state is not None:
            output, state = self.go_on(self.project(query), padding, saved)
            self.set_incremental_state(incremental_state, "attention", state)
        else:
            output = self.attend_from_start(self.project(query), padding)
        if weights is not None:
            weights = weights.transpose(0, 1) if need_head_weights else weights.mean(dim=1)
        return self.out_proj(merge_heads(output).to(query.dtype)), weights

    def attend_from_start(self, parts: Parts, padding: Optional[Tensor]) -> Tensor:
        """:meth:`attend`, with every sentence's first real token at place 0 where that counts."""
        if not self.from_start or padding is None:
            return self.attend(*parts, padding=padding)
        left = padded_left(padding)
        moved = (rotated(part, left, dim=2) for part in parts)
        return rotated(self.attend(*moved, padding=rotated(padding, left)), -left, dim=2)

    def _get_input_buffer(self, incremental_state: Optional[IncrementalState]) -> State:
        """What fairseq's decoder layer asks for and needs in cross-self-attention alone."""
        return {}

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Give hypothesis i the state that hypothesis ``new_order[i]`` had. new_order: [N']."""
        state = self.get_incremental_state(incremental_state, "attention")
        if state is not None:
            moved = {name: part.index_select(0, new_order) for name, part in state.items()}
            self.set_incremental_state(incremental_state, "attention", moved)


def padded_left(padding: Tensor) -> Tensor:
    """How many positions of each sentence are padded on the left [B, 1], of padding [B, T]."""
    return padding.long().cumprod(dim=1).sum(dim=1, keepdim=True)


def rotated(x: Tensor, shift: Tensor, dim: int = 1) -> Tensor:
    """x [B, ..] with sentence b moved to the left along ``dim`` by ``shift`` [B, 1], round its end."""
    places = (torch.arange(x.size(dim), device=x.device) + shift) % x.size(dim)
    shape = [1] * x.dim()
    shape[0], shape[dim] = places.shape
    return x.gather(dim, places.view(shape).expand_as(x))


def given_padding(padding: Optional[Tensor], x: Tensor) -> Tensor:
    """Padding [B, T] of x [B, H, T, K], also where None stands for none."""
    return x.new_zeros(x.size(0), x.size(2), dtype=torch.bool) if padding is None else padding


def excluded_keys(padding: Optional[Tensor], more: Optional[Tensor] = None) -> Optional[Tensor]:
    """What is padding [B, S] or in ``more`` [.., T, S]: [B, 1, T or 1, S]; None where nothing is left out."""
    if padding is None or more is None:
        return more if padding is None else padding[:, None, None, :]
    return more | padding[:, None, None, :]
