"""The learned initial P (Luna, section 3.1), as the encoder's first layer receives it."""

import math
from typing import Callable, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import in_a_graph


class PackedEmbedding(nn.Module):
    """P as a parameter, scaled, with positions, shortened to the batch.

    By default the projection length is dynamic: P is never longer than the longest sentence, and a sentence
    shorter than P leaves its last rows out. Results then do not depend on the other sentences of a batch.

    Args:
        projection_length: l, the number of rows
        embed_dim: C
        dropout: on P, drawn for every sentence (default: 0)
        scale: multiply by sqrt(C), as for token embeddings (default: False)
        positions: function of l and C that gives a table of positions [l, C] to be added, such as fairseq's
            ``SinusoidalPositionalEmbedding.get_embedding`` (default: none are)
        layer_norm: normalise (default: False)
        fix_length: always all rows, none left out (default: False)
        zero_padding: make rows that are left out zero (default: False)

    Raises:
        InputError: ``projection_length`` below 1
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
        self.static = False  # all rows with a mask, whatever the lengths: the same results
        self.zero_padding = zero_padding
        self.scale = math.sqrt(embed_dim) if scale else 1.0
        self.weight = nn.Parameter(torch.empty(projection_length, embed_dim))
        nn.init.normal_(self.weight, mean=0.0, std=embed_dim**-0.5)
        table = None if positions is None else positions(projection_length, embed_dim)
        self.register_buffer("positions", table, persistent=False)
        self.layer_norm = nn.LayerNorm(embed_dim) if layer_norm else None
        self.dropout_module = nn.Dropout(dropout)

    def forward(self, lengths: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """
        Args:
            lengths: tokens of each sentence, EOS included [B]

        Returns:
            P [L, B, C] and its padding mask [B, L], True at rows left out; None where no row is
        """
        L = self.weight.size(0)
        padding_mask = None
        if not self.fix_length:
            shortest = 0
            # In a graph, a length that is read as a number would be that of every later batch.
            if not (self.static or in_a_graph()):
                shortest, longest = torch.stack(torch.aminmax(lengths)).tolist()
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
