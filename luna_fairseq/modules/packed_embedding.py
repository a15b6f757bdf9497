"""The learned initial P (Luna, section 3.1), as the first layer reads it."""

import math
from typing import Callable, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import longest_sequence, shortest_sequence
from luna_fairseq.ops.attention import in_a_graph


class PackedEmbedding(nn.Module):
    """The packed sequence P as a parameter: scaled, with positions, shortened to the batch.

    By default the projection length is dynamic: P has no more rows than the longest sentence has tokens, and
    in a sentence shorter than P the last rows are padding. Results then do not depend on the other sentences
    of the batch.

    Args:
        projection_length: l, the number of rows
        embed_dim: C
        dropout: probability with which a value of P is dropped, for every sentence anew (default: 0)
        scale: multiply by sqrt(C), as for token embeddings (default: False)
        positions: function of l and C that returns positions [l, C] to be added, such as fairseq's
            ``SinusoidalPositionalEmbedding.get_embedding`` (default: None, no positions)
        layer_norm: normalise P (default: False)
        fix_length: always use all rows; none is padding (default: False)
        zero_padding: set rows that are padding to zero (default: False)

    Raises:
        InputError: ``projection_length`` is below 1

    Attributes:
        has_fixed_shape: use all rows and a padding mask for every batch, so that no shape depends on the
            lengths. Results are the same. Exports of graphs set it (default: False)
    """

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
    ):
        super().__init__()
        if projection_length < 1:
            raise InputError(
                f"projection length is {projection_length}: --projection-length must be 1 or more"
            )
        self.fix_length = fix_length
        self.has_fixed_shape = False
        self.zero_padding = zero_padding
        self.scale = math.sqrt(embed_dim) if scale else 1.0
        self.weight = nn.Parameter(torch.empty(projection_length, embed_dim))
        nn.init.normal_(self.weight, mean=0.0, std=embed_dim**-0.5)
        table = None if positions is None else positions(projection_length, embed_dim)
        self.register_buffer("positions", table, persistent=False)
        self.layer_norm = nn.LayerNorm(embed_dim) if layer_norm else None
        self.dropout_module = nn.Dropout(dropout)

    def forward(self, lengths: Tensor, at_most: Optional[int] = None) -> Tuple[Tensor, Optional[Tensor]]:
        """
        Args:
            lengths: number of tokens of each sentence, EOS included [B]
            at_most: number that no length exceeds, such as the padded length of the batch; used if a look at
                the lengths themselves would stall a GPU (default: None, unknown)

        Returns:
            P [L, B, C]; its padding mask [B, L], True at rows that are padding, or None if no row is
        """
        L = self.weight.size(0)
        padding_mask = None
        if not self.fix_length:
            shortest = 0
            if not (self.has_fixed_shape or in_a_graph()):
                L = max(1, min(L, longest_sequence(lengths, L if at_most is None else at_most)))
                shortest = shortest_sequence(lengths)
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
