"""Padding masks and token positions of a batch, computed once and shared by all layers.

Masks are boolean, True at padding: [B, S] or [B, T] for a batch of B sequences.
"""

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import is_recording_graph


class Source(NamedTuple):
    """Padding masks and sentence indices of B sequences, shared by all layers of an encoder or decoder.

    The packed sequence P of L rows attends to a context of S tokens: the input in an encoder, and the
    encoder's output in a decoder.

    Attributes:
        padding_mask: mask [B, S], True at padding of the context. None without padding.
        packed_padding_mask: mask [B, L], True at padded rows of P. None without padding.
        sentence_numbers: one-based index [B, S] of each token's sentence in its document, 0 at padding. None
            if sentences are not numbered.
    """

    padding_mask: Optional[Tensor] = None
    packed_padding_mask: Optional[Tensor] = None
    sentence_numbers: Optional[Tensor] = None


NO_PADDING = Source()


class Target(NamedTuple):
    """Target tokens that a decoder processes in one call, with their padding mask and positions.

    Attributes:
        padding_mask: mask [B, T], True at padding.
        places: zero-based index [B, T] of each token in its sequence, not counting padding.
        tokens: token ids [B, T]. None if the caller passed embeddings instead.
    """

    padding_mask: Tensor
    places: Tensor
    tokens: Optional[Tensor] = None


class Geometry(NamedTuple):
    """Token positions, for attention modules whose weights depend on the distance between tokens.

    Luna's own attention modules do not use positions. Other modules define the types of both fields.

    Attributes:
        context: positions of the context, the sequence that the packed sequence P attends to.
        target: positions of the queries.
    """

    context: Any = None
    target: Any = None


def find_padding(tokens: Optional[Tensor], padding_idx: int) -> Tensor:
    """Return the padding mask [B, T] of token ids [B, T], or raise an InputError if ``tokens`` is None."""
    if tokens is None:
        raise InputError("Expected tokens or a padding mask, got embeddings alone. Pass the padding mask too")
    return tokens.eq(padding_idx)


def token_places(padding_mask: Tensor, count: Optional[Tensor] = None, has_padding: bool = True) -> Tensor:
    """Return the zero-based index [B, T] of each token in its sequence, not counting padding. 0 at padding.

    If ``count`` [B] is given, the indices continue after this number of earlier tokens. Pass
    ``has_padding=False`` to save operations if the mask is False everywhere.

    Example:
        >>> import torch
        >>> token_places(torch.tensor([[True, False, False], [False, False, False]]))
        tensor([[0, 0, 1],
                [0, 1, 2]])
    """
    if not has_padding:
        if count is not None and padding_mask.size(1) == 1:
            return count[:, None]
        places = torch.arange(padding_mask.size(1), device=padding_mask.device).expand_as(padding_mask)
        return places if count is None else places + count[:, None]
    places = (~padding_mask).long().cumsum(dim=1) - 1
    return (places if count is None else places + count[:, None]).masked_fill(padding_mask, 0)


def can_branch_on_values(x: Tensor) -> bool:
    """Return True if x is on a CPU and torch runs eagerly, so that Python code may branch on its values.

    Reading a value would wait for a GPU, and a captured graph would contain only one branch.
    """
    return x.device.type == "cpu" and not is_recording_graph()


def drop_empty_mask(mask: Optional[Tensor]) -> Optional[Tensor]:
    """Return the mask, or None if it is False everywhere, because attention is faster without a mask.

    A mask on a GPU or in a captured graph is always returned, because its values cannot be read cheaply.
    """
    if mask is not None and can_branch_on_values(mask) and not mask.any():
        return None
    return mask


def length_range(lengths: Tensor, at_most: int) -> Tuple[int, int]:
    """Return the minimum and maximum of ``lengths`` [B], or (0, ``at_most``) if the values are not read.

    The values are not read on a GPU, where reading is slow, in a captured graph, and if B is 0.
    """
    if can_branch_on_values(lengths) and lengths.numel():
        return int(lengths.min()), int(lengths.max())
    return 0, at_most
