"""Token embedding, and the learned initial packed sequence P (Luna, section 3.1)."""

import math
from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import length_range
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.options import StackOptions
from luna_fairseq.ops.attention import is_recording_graph


class TokenEmbedding(nn.Module):
    """Base class of the encoder and the decoder that applies the token embedding.

    The token embedding consists of the embedding matrix, position embeddings, word dropout and dropout. A
    linear projection and a layer norm are optional. Subclasses build the positions and the optional modules,
    because the order of construction is the order of the parameters in a checkpoint.

    ``owner`` is the class name that is passed to ``builders.dropout``. If a subclass inherits from a second
    base class, such as fairseq's, ``base`` holds the constructor arguments of that class.
    """

    def __init__(
        self,
        options: StackOptions,
        embed_tokens: nn.Module,
        owner: str,
        builders: Builders = TORCH,
        **base: Any,
    ):
        super().__init__(**base)
        self.options = options
        self.embed_scale = math.sqrt(options.embed_dim) if options.scale_embedding else 1.0
        self.padding_idx: int = embed_tokens.padding_idx
        self.dropout_module = builders.dropout(options.dropout, owner)
        self.word_dropout_module = builders.dropout(options.word_dropout, owner)
        self.embed_tokens = embed_tokens

    def embed_places(self, places: Tensor, padding_mask: Optional[Tensor], end: int) -> Optional[Tensor]:
        """Return the position embeddings [B, T, C] of a batch. None if the model has no positions.

        Args:
            places: zero-based index [B, T] of each token in its sequence.
            padding_mask: boolean mask [B, T], True at padding. None if there is no padding.
            end: length of the longest sequence so far, including padding.
        """
        if self.embed_positions is None:
            return None
        positions = places + (self.padding_idx + 1)
        if padding_mask is not None:
            positions = positions.masked_fill(padding_mask, self.padding_idx)
        return self.embed_positions(positions, end)


def drop_words(embeddings: Tensor, dropout_module: nn.Module) -> Tensor:
    """Apply dropout to whole token embeddings: all C features of a dropped token in [B, T, C] become 0."""
    if dropout_module.p == 0.0:
        return embeddings
    return embeddings * dropout_module(embeddings.new_ones(embeddings.shape[:2])).unsqueeze(-1)


class PackedEmbedding(nn.Module):
    """Learned packed sequence P with optional scaling, positions, layer norm and dropout.

    A batch has L rows of P, where L is ``projection_length`` or the length of the longest sentence, whichever
    is smaller. A sentence uses at most as many rows as it has tokens, and its other rows are padding. The
    result for a sentence therefore does not depend on the other sentences of the batch.

    Args:
        projection_length: number of learned rows of P.
        embed_dim: width C of each row.
        dropout: dropout probability, with a separate mask per sentence.
        scale: multiply P by sqrt(C), like token embeddings.
        positions: function ``(length, width) -> position embeddings [length, width]``. If None, P has no
            positions.
        layer_norm: apply a layer norm to P.
        fix_length: let every sentence use all rows, so that there is no padding mask.
        zero_padding: set padded rows to zero.
        has_fixed_shape: always return all rows, but mask rows that a sentence does not use. No shape then
            depends on the sentence lengths.
        builders: functions that build dropout and layer norm (default: torch's).

    Raises:
        InputError: ``projection_length`` is less than 1.

    Example:
        >>> import torch
        >>> packed_embedding = PackedEmbedding(projection_length=4, embed_dim=64)
        >>> packed, padding_mask = packed_embedding(torch.tensor([5, 3]))
        >>> packed.shape
        torch.Size([4, 2, 64])
        >>> padding_mask
        tensor([[False, False, False, False],
                [False, False, False,  True]])
    """

    positions: Optional[Tensor]  # [L, C]

    def __init__(
        self,
        projection_length: int,
        embed_dim: int,
        dropout: float = 0.0,
        scale: bool = False,
        positions: Optional[Callable[[int, int], Tensor]] = None,
        layer_norm: bool = False,
        fix_length: bool = False,
        zero_padding: bool = False,
        has_fixed_shape: bool = False,
        builders: Builders = TORCH,
    ):
        super().__init__()
        if projection_length < 1:
            raise InputError(
                f"projection length is {projection_length}: --projection-length must be 1 or more"
            )
        self.fix_length = fix_length
        self.has_fixed_shape = has_fixed_shape
        self.zero_padding = zero_padding
        self.scale = math.sqrt(embed_dim) if scale else 1.0
        self.weight = nn.Parameter(torch.empty(projection_length, embed_dim))
        nn.init.normal_(self.weight, mean=0.0, std=embed_dim**-0.5)
        self._compute_positions = positions
        table = None if positions is None else positions(projection_length, embed_dim)
        self.register_buffer("positions", table, persistent=False)
        self.layer_norm = builders.norm(embed_dim) if layer_norm else None
        self.dropout_module = builders.dropout(dropout, "PackedEmbedding")

    def restore_positions(self) -> None:
        """Compute the table of positions again, which checkpoints do not have."""
        if self._compute_positions is not None and self.positions is not None:
            like = self.weight if self.positions.is_meta else self.positions
            self.positions = self._compute_positions(*self.positions.shape).to(like)

    # to_empty() leaves the positions without values, and bfloat16() rounds them.
    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        super()._apply(*args, **kwargs)
        self.restore_positions()
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.restore_positions()

    def forward(self, lengths: Tensor, at_most: Optional[int] = None) -> Tuple[Tensor, Optional[Tensor]]:
        """Return the packed sequence P and its padding mask for a batch of sentences.

        Args:
            lengths: number of tokens [B] in each of B sentences, including EOS.
            at_most: upper bound of the lengths, such as the padded length of the batch. None if no bound is
                known. On a GPU, where reading the lengths is slow, this bound replaces the longest length.

        Returns:
            P [L, B, C] with L rows of width C, and a boolean mask [B, L], True at padded rows. The mask is
            None with ``fix_length``, or if the lengths are read and are all at least L.
        """
        L = self.weight.size(0)
        padding_mask = None
        if not self.fix_length:
            shortest = 0
            if not (self.has_fixed_shape or is_recording_graph()):
                shortest, longest = length_range(lengths, L if at_most is None else at_most)
                L = max(1, min(L, longest))
            if shortest < L:
                padding_mask = torch.arange(L, device=lengths.device)[None, :] >= lengths[:, None]
        packed = self.scale * self.weight[:L]
        if self.positions is not None:
            packed = packed + self.positions[:L].to(packed)
        if self.layer_norm is not None:
            packed = self.layer_norm(packed)
        packed = self.dropout_module(packed.unsqueeze(1).expand(-1, lengths.size(0), -1))  # [L, B, C]
        if self.zero_padding and padding_mask is not None:
            packed = packed.masked_fill(padding_mask.t().unsqueeze(-1), 0.0)
        return packed, padding_mask
