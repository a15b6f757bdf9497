"""Sinusoidal and learned position embeddings. Shapes: batch size B, T tokens, width C."""

import math
from typing import Optional

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.options import LEARNED, NO_POSITIONS, StackOptions


def sinusoids(places: Tensor, embed_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return sinusoidal embeddings [..., embed_dim] of the positions ``places`` [...], of any shape.

    All sines precede all cosines, as in fairseq.

    Example:
        >>> import torch
        >>> sinusoids(torch.arange(3), embed_dim=8).shape
        torch.Size([3, 8])
    """
    half = embed_dim // 2
    scale = math.log(10000) / max(1, half - 1)
    frequency = torch.exp(-scale * torch.arange(half, device=places.device, dtype=dtype))
    angles = places.to(dtype).unsqueeze(-1) * frequency
    table = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return nn.functional.pad(table, (0, embed_dim - 2 * half))


def sinusoidal_table(length: int, embed_dim: int) -> Tensor:
    """Return sinusoidal embeddings [length, embed_dim] of the positions 0 to ``length - 1``."""
    return sinusoids(torch.arange(length), embed_dim)


class SinusoidalPositions(nn.Module):
    """Sinusoidal position embedding without a maximum length.

    Padding has the position ``padding_idx`` and a zero embedding. The first token has the position
    ``padding_idx + 1``, as in fairseq.
    """

    def __init__(self, embed_dim: int, padding_idx: int):
        super().__init__()
        self.embedding_dim, self.padding_idx = embed_dim, padding_idx

    def forward(self, positions: Tensor, end: int) -> Tensor:
        """Return the embeddings [B, T, C] of ``positions`` [B, T], zero at padding. ``end`` is ignored."""
        is_token = positions.ne(self.padding_idx).unsqueeze(-1)
        return sinusoids(positions, self.embedding_dim) * is_token


class LearnedPositions(nn.Embedding):
    """Learned position embedding for at most ``max_positions`` tokens.

    Padding has the position ``padding_idx``, and the first token ``padding_idx + 1``, as in fairseq.
    """

    def __init__(self, max_positions: int, embed_dim: int, padding_idx: int):
        super().__init__(max_positions + padding_idx + 1, embed_dim, padding_idx)
        self.max_positions = max_positions
        nn.init.normal_(self.weight, mean=0.0, std=embed_dim**-0.5)
        nn.init.zeros_(self.weight[padding_idx].detach())

    def forward(self, positions: Tensor, end: int) -> Tensor:
        """Return the embeddings [B, T, C] of ``positions`` [B, T].

        ``end`` is the length of the longest sequence, including padding. Raise an InputError if a sequence
        has more than ``max_positions`` tokens.
        """
        if end > self.max_positions:
            longest = int(positions.max()) - self.padding_idx  # without padding
            if longest > self.max_positions:
                raise InputError(
                    f"a sequence has {longest} tokens, the model's positions end at {self.max_positions}. "
                    "Shorten the sequence, or build the model with a larger max_positions"
                )
        return super().forward(positions)


def build_positions(options: StackOptions, padding_idx: int) -> Optional[nn.Module]:
    """Build the position embedding that the options select. Return None if they select no positions.

    Padding has the position ``padding_idx``.
    """
    if options.positions == NO_POSITIONS:
        return None
    if options.positions == LEARNED:
        return LearnedPositions(options.max_positions, options.embed_dim, padding_idx)
    return SinusoidalPositions(options.embed_dim, padding_idx)
