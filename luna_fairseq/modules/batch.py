"""Padding masks and token positions of a batch, computed once and shared by all layers."""

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import is_recording_graph


class Source(NamedTuple):
    """Padding masks and sentence numbers of a batch, passed to every layer.

    The context is the sequence that the packed sequence P attends to: the input itself in an encoder, and the
    encoder's output in a decoder.

    Shapes: batch size B, S context tokens, L rows of P.

    Attributes:
        padding_mask: boolean mask [B, S], True at padding of the context (default: None, no padding).
        packed_padding_mask: boolean mask [B, L], True at padded rows of P (default: None, no padding).
        sentence_numbers: one-based number [B, S] of the sentence in a document that each token belongs to,
            and 0 at padding (default: None, sentences are not numbered).
    """

    padding_mask: Optional[Tensor] = None
    packed_padding_mask: Optional[Tensor] = None
    sentence_numbers: Optional[Tensor] = None

    def stride(self, step: int) -> "Source":
        """Return the masks of every ``step``-th example of the batch.

        In beam search, each sentence is repeated ``step`` times in the batch. This method returns one copy
        per sentence.

        Args:
            step: stride between selected examples, as in ``x[::step]``.

        Returns:
            The selected masks and sentence numbers.
        """
        return self if step == 1 else Source(*(None if x is None else x[::step] for x in self))


NO_PADDING = Source()


class Target(NamedTuple):
    """Target tokens that a decoder processes in one call, with their padding mask and positions.

    Shapes: batch size B, T target tokens.

    Attributes:
        padding_mask: boolean mask [B, T], True at padding.
        places: zero-based index [B, T] of each token in its sequence, not counting padding.
        tokens: token ids [B, T], or None if the caller passed embeddings instead.
    """

    padding_mask: Tensor
    places: Tensor
    tokens: Optional[Tensor] = None


class Geometry(NamedTuple):
    """Token positions, for attention modules whose weights depend on distance.

    The attention modules of the Luna paper do not depend on distance and need no positions. The types of the
    two values are defined by an extension, such as ``luna_fairseq.anchored``.

    Attributes:
        context: positions in the sequence that the packed sequence P attends to, shared by all layers
            (default: None).
        target: positions of the queries in the target (default: None).
    """

    context: Any = None
    target: Any = None


def find_padding(tokens: Optional[Tensor], padding_idx: int) -> Tensor:
    """Return the padding mask of token ids.

    Args:
        tokens: token ids [B, T], for batch size B and length T.
        padding_idx: id of the padding token.

    Returns:
        Boolean mask [B, T], True at padding.

    Raises:
        InputError: ``tokens`` is None: the caller passed embeddings but no padding mask.
    """
    if tokens is None:
        raise InputError("Expected tokens or a padding mask, got embeddings alone. Pass the padding mask too")
    return tokens.eq(padding_idx)


def token_places(padding_mask: Tensor, count: Optional[Tensor] = None, has_padding: bool = True) -> Tensor:
    """Return the index of each token in its sequence, not counting padding.

    Shapes: batch size B, T tokens.

    Args:
        padding_mask: boolean mask [B, T], True at padding.
        count: number [B] of earlier tokens in each sequence (default: None, no earlier tokens).
        has_padding: False if there is known to be no padding, which saves operations (default: True).

    Returns:
        Zero-based indices [B, T], with 0 at padding.

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
    """Return True if Python code may branch on the values of a tensor, for example in an ``if``.

    The result is False for a tensor on a GPU, because reading its values would synchronize the CPU with the
    GPU. It is also False in a compiled or exported graph, where the branch taken for the example input would
    be hard-coded.

    Args:
        x: tensor on any device.

    Returns:
        True for a tensor on the CPU, outside of a graph.
    """
    return x.device.type == "cpu" and not is_recording_graph()


def drop_empty_mask(mask: Optional[Tensor]) -> Optional[Tensor]:
    """Return None instead of a mask that is False everywhere.

    Attention without a mask is faster, and the result is the same.

    Args:
        mask: boolean mask of any shape, or None.

    Returns:
        None if no value of the mask is True, and otherwise the unchanged mask. A mask on a GPU or in a
        compiled graph is not inspected and is returned unchanged.
    """
    if mask is not None and can_branch_on_values(mask) and not mask.any():
        return None
    return mask


def longest_sequence(lengths: Tensor, at_most: int) -> int:
    """Return the longest sequence length, or an upper bound if the lengths cannot be inspected.

    Args:
        lengths: sequence lengths [B] of a batch of size B.
        at_most: upper bound, returned for lengths on a GPU or in a compiled graph.

    Returns:
        The largest length, or ``at_most``.
    """
    if can_branch_on_values(lengths) and lengths.numel():
        return int(lengths.max())
    return at_most


def shortest_sequence(lengths: Tensor) -> int:
    """Return the shortest sequence length, or the lower bound 0 if the lengths cannot be inspected.

    Args:
        lengths: sequence lengths [B] of a batch of size B.

    Returns:
        The smallest length, or 0 for lengths on a GPU or in a compiled graph.
    """
    if can_branch_on_values(lengths) and lengths.numel():
        return int(lengths.min())
    return 0
