"""Token embedding with positions, shared by the encoder and the decoder."""

import math
from typing import Optional

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.options import LEARNED, NO_POSITIONS, StackOptions


def sinusoids(places: Tensor, embed_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return sinusoidal position embeddings in fairseq's order, all sines before all cosines.

    Args:
        places: positions [...], a tensor of any shape.
        embed_dim: width C of the embeddings.
        dtype: dtype of the result and of the angles (default: float32, as in fairseq).

    Returns:
        Position embeddings [..., C].

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
    """Return sinusoidal embeddings for the positions 0 to ``length - 1``.

    Args:
        length: number of positions.
        embed_dim: width of the embeddings.

    Returns:
        Position embeddings [length, embed_dim].
    """
    return sinusoids(torch.arange(length), embed_dim)


class SinusoidalPositions(nn.Module):
    """Sinusoidal position embedding without a maximum length.

    The embedding of padding is zero.

    Args:
        embed_dim: width of the embeddings.
        padding_idx: position index assigned to padding tokens. The first token has position
            ``padding_idx + 1``, as in fairseq.
    """

    def __init__(self, embed_dim: int, padding_idx: int):
        super().__init__()
        self.embedding_dim, self.padding_idx = embed_dim, padding_idx

    def forward(self, positions: Tensor, end: int) -> Tensor:
        """Return the embeddings of token positions.

        Args:
            positions: position [B, T] of each token, for batch size B and length T. The first token of a
                sequence has position ``padding_idx + 1``.
            end: length of the longest sequence in the batch. Unused, because sinusoidal embeddings extend to
                any length.

        Returns:
            Position embeddings [B, T, C] of width C.
        """
        is_token = positions.ne(self.padding_idx).unsqueeze(-1)
        return sinusoids(positions, self.embedding_dim) * is_token


class LearnedPositions(nn.Embedding):
    """Learned position embedding with a maximum length.

    Args:
        max_positions: maximum sequence length.
        embed_dim: width of the embeddings.
        padding_idx: position index assigned to padding tokens. The first token has position
            ``padding_idx + 1``, as in fairseq.
    """

    def __init__(self, max_positions: int, embed_dim: int, padding_idx: int):
        super().__init__(max_positions + padding_idx + 1, embed_dim, padding_idx)
        self.max_positions = max_positions
        nn.init.normal_(self.weight, mean=0.0, std=embed_dim**-0.5)
        nn.init.zeros_(self.weight[padding_idx].detach())

    def forward(self, positions: Tensor, end: int) -> Tensor:
        """Return the embeddings of token positions.

        Args:
            positions: position [B, T] of each token, for batch size B and length T. The first token of a
                sequence has position ``padding_idx + 1``.
            end: length of the longest sequence in the batch, including padding.

        Returns:
            Position embeddings [B, T, C] of width C.

        Raises:
            InputError: ``end`` is larger than ``max_positions``.
        """
        if end > self.max_positions:
            raise InputError(
                f"a sequence has {end} tokens, the model's positions end at {self.max_positions}. "
                "Shorten the sequence, or build the model with a larger max_positions"
            )
        return super().forward(positions)


class TokenEmbedding(nn.Module):
    """Base class of the encoder and the decoder, which builds and applies the token embedding.

    The token embedding consists of the embedding matrix, position embeddings, word dropout and dropout. A
    linear projection and a layer norm are optional.
    """

    def build_positions(self, options: StackOptions, padding_idx: int) -> Optional[nn.Module]:
        """Build the position embedding selected by the options.

        Args:
            options: encoder or decoder options.
            padding_idx: position index assigned to padding tokens.

        Returns:
            A :class:`SinusoidalPositions` or :class:`LearnedPositions`, or None if the model has no
            positions.
        """
        if options.positions == NO_POSITIONS:
            return None
        if options.positions == LEARNED:
            return LearnedPositions(options.max_positions, options.embed_dim, padding_idx)
        return SinusoidalPositions(options.embed_dim, padding_idx)

    def build_embedding(self, options: StackOptions, embed_tokens: nn.Module) -> None:
        """Store the token embedding, and build its dropout modules.

        Subclasses build the other parts themselves, because the order of construction is the order of the
        parameters in a checkpoint.

        Args:
            options: encoder or decoder options.
            embed_tokens: token embedding with the attribute ``padding_idx``.
        """
        self.options = options
        self.embed_scale = math.sqrt(options.embed_dim) if options.scale_embedding else 1.0
        self.padding_idx: int = embed_tokens.padding_idx
        self.dropout_module: nn.Module = nn.Dropout(options.dropout)
        self.word_dropout_module: nn.Module = nn.Dropout(options.word_dropout)
        self.embed_tokens = embed_tokens

    def build_embedding_norm(self) -> Optional[nn.Module]:
        """Build the layer norm of the token embeddings, or return None if the options disable it."""
        return nn.LayerNorm(self.options.embed_dim) if self.options.layernorm_embedding else None

    def build_embedding_linear(self) -> Optional[nn.Module]:
        """Build the linear projection of the token embeddings, or return None if the options disable it."""
        C = self.options.embed_dim
        return nn.Linear(C, C, bias=False) if self.options.linear_embedding else None

    def embed_places(self, places: Tensor, padding_mask: Optional[Tensor], end: int) -> Optional[Tensor]:
        """Return the position embeddings of a batch, or None if the model has no positions.

        Shapes: batch size B, T tokens, width C.

        Args:
            places: zero-based index [B, T] of each token in its sequence.
            padding_mask: boolean mask [B, T], True at padding, or None if there is no padding.
            end: length of the longest sequence so far, including padding.

        Returns:
            Position embeddings [B, T, C], or None.
        """
        if self.embed_positions is None:
            return None
        positions = places + (self.padding_idx + 1)
        if padding_mask is not None:
            positions = positions.masked_fill(padding_mask, self.padding_idx)
        return self.embed_positions(positions, end)


def drop_words(embeddings: Tensor, dropout_module: nn.Module) -> Tensor:
    """Apply dropout to the embeddings of whole tokens.

    In training, the embeddings of randomly chosen tokens are set to zero and the others are scaled up.

    Args:
        embeddings: token embeddings [B, T, C], for batch size B, T tokens and width C.
        dropout_module: dropout module, applied to one value per token.

    Returns:
        Token embeddings [B, T, C].
    """
    if dropout_module.p == 0.0:
        return embeddings
    return embeddings * dropout_module(embeddings.new_ones(embeddings.shape[:2])).unsqueeze(-1)
