"""Token embedding with positions, which an encoder and a decoder begin with."""

import math
from typing import Optional

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.options import LEARNED, NO_POSITIONS, StackOptions


def sinusoids(places: Tensor, embed_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return fairseq's sinusoidal positions: sines, then cosines.

    Args:
        places: [..]
        embed_dim: C
        dtype: type of the result, and precision of the angles (default: float32, as in fairseq)

    Returns:
        [.., C]
    """
    half = embed_dim // 2
    scale = math.log(10000) / max(1, half - 1)
    frequency = torch.exp(-scale * torch.arange(half, device=places.device, dtype=dtype))
    angles = places.to(dtype).unsqueeze(-1) * frequency
    table = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return nn.functional.pad(table, (0, embed_dim - 2 * half))


def sinusoidal_table(length: int, embed_dim: int) -> Tensor:
    """Return the sinusoidal positions at places 0 to ``length`` - 1: [length, C]."""
    return sinusoids(torch.arange(length), embed_dim)


class SinusoidalPositions(nn.Module):
    """Sinusoidal position embedding without a maximum length. Padding gets zeros.

    Args:
        embed_dim: C
        padding_idx: position of padding. The first token has position ``padding_idx + 1``, as in fairseq.
    """

    def __init__(self, embed_dim: int, padding_idx: int):
        super().__init__()
        self.embedding_dim, self.padding_idx = embed_dim, padding_idx

    def forward(self, positions: Tensor, end: int) -> Tensor:
        """Return [B, T, C] for ``positions`` [B, T], which are below ``end`` + padding_idx + 1."""
        is_token = positions.ne(self.padding_idx).unsqueeze(-1)
        return sinusoids(positions, self.embedding_dim) * is_token


class LearnedPositions(nn.Embedding):
    """A learned vector for each position.

    Args:
        max_positions: length of the longest sequence
        embed_dim: C
        padding_idx: position of padding; the first token has the next one
    """

    def __init__(self, max_positions: int, embed_dim: int, padding_idx: int):
        super().__init__(max_positions + padding_idx + 1, embed_dim, padding_idx)
        self.max_positions = max_positions
        nn.init.normal_(self.weight, mean=0.0, std=embed_dim**-0.5)
        nn.init.zeros_(self.weight[padding_idx].detach())

    def forward(self, positions: Tensor, end: int) -> Tensor:
        """Return [B, T, C] for ``positions`` [B, T] in sequences that end at ``end``. Raises InputError if
        that is beyond the longest sequence."""
        if end > self.max_positions:
            raise InputError(
                f"a sequence has {end} tokens, the model's positions end at {self.max_positions}"
            )
        return super().forward(positions)


class TokenEmbedding(nn.Module):
    """Base of the encoder and the decoder: the vectors that their first layer reads."""

    def build_positions(self, options: StackOptions, padding_idx: int) -> Optional[nn.Module]:
        """Build a module of (positions [B, T], end of the sequences) -> vectors [B, T, C], or return None."""
        if options.positions == NO_POSITIONS:
            return None
        if options.positions == LEARNED:
            return LearnedPositions(options.max_positions, options.embed_dim, padding_idx)
        return SinusoidalPositions(options.embed_dim, padding_idx)

    def build_embedding(self, options: StackOptions, embed_tokens: nn.Module) -> None:
        """Keep ``embed_tokens`` and build the dropouts. Subclasses build the rest in the order of their
        checkpoints."""
        self.options = options
        self.embed_scale = math.sqrt(options.embed_dim) if options.scale_embedding else 1.0
        self.padding_idx: int = embed_tokens.padding_idx
        self.dropout_module: nn.Module = nn.Dropout(options.dropout)
        self.word_dropout_module: nn.Module = nn.Dropout(options.word_dropout)
        self.embed_tokens = embed_tokens

    def embed_norm(self) -> Optional[nn.Module]:
        """Build the norm of the token vectors, if the options ask for one."""
        return nn.LayerNorm(self.options.embed_dim) if self.options.layernorm_embedding else None

    def embed_linear(self) -> Optional[nn.Module]:
        """Build the linear map of the token vectors, if the options ask for one."""
        C = self.options.embed_dim
        return nn.Linear(C, C, bias=False) if self.options.linear_embedding else None

    def positions_of(self, places: Tensor, padding_mask: Tensor, end: int) -> Optional[Tensor]:
        """Return the vectors of positions [B, T, C], or None if the model has none.

        Args:
            places: [B, T], number of each token in its sequence, from 0
            padding_mask: [B, T], True at padding
            end: length of the longest sequence so far, padding included
        """
        if self.embed_positions is None:
            return None
        positions = (places + self.padding_idx + 1).masked_fill(padding_mask, self.padding_idx)
        return self.embed_positions(positions, end)


def drop_words(embedding: Tensor, dropout_module: nn.Module) -> Tensor:
    """Drop whole token vectors of ``embedding`` [B, T, C] and rescale the others."""
    if dropout_module.p == 0.0:
        return embedding
    return embedding * dropout_module(embedding.new_ones(embedding.shape[:2])).unsqueeze(-1)
