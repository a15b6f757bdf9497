"""Token embedding of the encoder and the decoder."""

import math
from typing import Any, Optional

from torch import Tensor, nn

from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.options import StackOptions


class TokenEmbedding(nn.Module):
    """Base class of the encoder and the decoder, which applies the token embedding.

    The token embedding consists of the embedding matrix, position embeddings, word dropout and dropout. A
    linear projection and a layer norm are optional. Subclasses build the positions and the optional modules,
    because the order of construction is the order of the parameters in a checkpoint.

    ``owner`` is the class name that ``builders.dropout`` receives, and ``base`` holds keyword arguments of
    the next base class.
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
        """Return the position embeddings [B, T, C] of a batch, or None if the model has no positions.

        Args:
            places: zero-based index [B, T] of each token in its sequence.
            padding_mask: boolean mask [B, T], True at padding, or None if there is no padding.
            end: length of the longest sequence so far, including padding.
        """
        if self.embed_positions is None:
            return None
        positions = places + (self.padding_idx + 1)
        if padding_mask is not None:
            positions = positions.masked_fill(padding_mask, self.padding_idx)
        return self.embed_positions(positions, end)


def drop_words(embeddings: Tensor, dropout_module: nn.Module) -> Tensor:
    """Apply dropout to whole tokens: all C features of a dropped token become 0 in embeddings [B, T, C]."""
    if dropout_module.p == 0.0:
        return embeddings
    return embeddings * dropout_module(embeddings.new_ones(embeddings.shape[:2])).unsqueeze(-1)
