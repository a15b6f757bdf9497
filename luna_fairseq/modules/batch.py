"""Padding masks and token positions of a batch, computed once and shared by all layers."""

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import in_a_graph


class Source(NamedTuple):
    """Masks of a context and of the packed sequence P.

    In an encoder, the context is the sequence itself. In a decoder, the context is the encoder's output.

    Attributes:
        padding_mask: boolean mask [B, S], True at padding of the context (default: None, no padding).
        packed_padding_mask: boolean mask [B, L], True at rows of P that are padding (default: None, all rows
            are used).
        sentence_numbers: number of the sentence that each token belongs to [B, S], counted from 1, and 0 at
            padding (default: None, the model does not count sentences).
    """

    padding_mask: Optional[Tensor] = None
    packed_padding_mask: Optional[Tensor] = None
    sentence_numbers: Optional[Tensor] = None

    def stride(self, step: int) -> "Source":
        """Return the masks of every ``step``-th example of the batch.

        Args:
            step: distance between two selected examples, as in ``x[::step]``.
        """
        return self if step == 1 else Source(*(None if x is None else x[::step] for x in self))


NO_PADDING = Source()


class Target(NamedTuple):
    """Target tokens that a decoder reads in one call, with their padding mask and positions.

    Attributes:
        padding_mask: boolean mask [B, T], True at padding.
        places: index [B, T] of each token in its sequence, counted from 0 without padding.
        tokens: token ids [B, T], or None if the caller passed embeddings instead.
    """

    padding_mask: Tensor
    places: Tensor
    tokens: Optional[Tensor] = None


class Geometry(NamedTuple):
    """Positions of tokens and queries, for attentions whose weights depend on distance.

    The paper's attentions do not read positions, so that both values are None.

    Attributes:
        context: positions of the context's tokens and of the rows of the packed sequence P, shared by all
            layers (default: None).
        target: positions of the queries in the target (default: None).
    """

    context: Any = None
    target: Any = None


def find_padding(tokens: Optional[Tensor], padding_idx: int) -> Tensor:
    """Return the padding mask of token ids.

    Args:
        tokens: token ids [B, T].
        padding_idx: id of the padding token.

    Returns:
        Boolean mask [B, T], True at padding.

    Raises:
        InputError: ``tokens`` is None. Padding cannot be recognised in embeddings.
    """
    if tokens is None:
        raise InputError("Expected tokens or a padding mask, got embeddings alone. Pass the padding mask too")
    return tokens.eq(padding_idx)


def token_places(padding_mask: Tensor, count: Optional[Tensor] = None, has_padding: bool = True) -> Tensor:
    """Return the index of each token in its sequence, not counting padding.

    Args:
        padding_mask: boolean mask [B, T], True at padding.
        count: number [B] of earlier tokens of each sequence (default: None, no earlier tokens).
        has_padding: False if it is known that no position is padding, which saves operations (default: True).

    Returns:
        Indices [B, T], counted from 0, and 0 at padding.

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
    """Return True if a Python branch may depend on the values of a tensor.

    Reading a tensor on a GPU makes the CPU wait for the GPU. A compiled graph would always follow the branch
    of the example that it was traced with.

    Args:
        x: tensor on any device.
    """
    return x.device.type == "cpu" and not in_a_graph()


def drop_empty_mask(mask: Optional[Tensor]) -> Optional[Tensor]:
    """Replace a mask without any True by None, if its values can be read cheaply.

    Attention without a mask is faster and gives the same results.

    Args:
        mask: boolean mask of any shape, or None.

    Returns:
        None if no value of the mask is True, and the unchanged mask otherwise. A mask on a GPU or in a
        compiled graph is returned unchanged.
    """
    if mask is not None and can_branch_on_values(mask) and not mask.any():
        return None
    return mask


def longest_sequence(lengths: Tensor, at_most: int) -> int:
    """Return the longest sequence length, or an upper bound if reading the lengths is expensive.

    Args:
        lengths: sequence lengths [B].
        at_most: upper bound of the lengths, returned for lengths on a GPU or in a compiled graph.
    """
    if can_branch_on_values(lengths) and lengths.numel():
        return int(lengths.max())
    return at_most


def shortest_sequence(lengths: Tensor) -> int:
    """Return the shortest sequence length, or the lower bound 0 if reading the lengths is expensive.

    Args:
        lengths: sequence lengths [B].
    """
    if can_branch_on_values(lengths) and lengths.numel():
        return int(lengths.min())
    return 0
