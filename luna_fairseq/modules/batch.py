"""Describe a batch: its padding and places, found once before the layers run and read by all of them."""

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import in_a_graph


class Source(NamedTuple):
    """Masks of the context and of the packed sequence P. In an encoder the context is the sequence itself; in
    a decoder it is the encoder's output.

    Attributes:
        padding_mask: [B, S], True at padding of the context (default: None, no padding)
        packed_padding_mask: [B, L], True at the rows of P that are padding (default: None, all rows are used)
        sentence_numbers: [B, S], number of the sentence that each token belongs to, from 1, and 0 at padding
            (default: None, the model does not count sentences)
    """

    padding_mask: Optional[Tensor] = None
    packed_padding_mask: Optional[Tensor] = None
    sentence_numbers: Optional[Tensor] = None

    def stride(self, step: int) -> "Source":
        """Return the description of every ``step``-th sentence of the batch."""
        return self if step == 1 else Source(*(None if x is None else x[::step] for x in self))


NO_PADDING = Source()


class Target(NamedTuple):
    """The tokens that a decoder reads in one call.

    Attributes:
        padding_mask: [B, T], True at padding
        places: [B, T], number of each token in its sequence, from 0; padding is not counted
        tokens: [B, T]; None if the caller gave vectors instead
    """

    padding_mask: Tensor
    places: Tensor
    tokens: Optional[Tensor] = None


class Geometry(NamedTuple):
    """What an attention knows of the batch besides masks. The paper's attention needs neither part.

    Attributes:
        context: geometry of the context and P, the same in all layers (default: None)
        target: places of the queries in the target (default: None)
    """

    context: Any = None
    target: Any = None


def find_padding(tokens: Optional[Tensor], padding_idx: int) -> Tensor:
    """Return the padding mask [B, T] of ``tokens`` [B, T]. Raises InputError if there are none: vectors do
    not say which of them are padding."""
    if tokens is None:
        raise InputError("give tokens, or a padding mask with the vectors that replace them")
    return tokens.eq(padding_idx)


def token_places(padding_mask: Tensor, count: Optional[Tensor] = None) -> Tensor:
    """Number the tokens of each sequence from 0 and leave padding out.

    Args:
        padding_mask: [B, T], True at padding
        count: [B], number of tokens that came before (default: none)

    Returns:
        [B, T], 0 at padding
    """
    places = (~padding_mask).long().cumsum(dim=1) - 1
    return (places if count is None else places + count[:, None]).masked_fill(padding_mask, 0)


def can_look_at(x: Tensor) -> bool:
    """Return True if a Python branch may depend on the values of ``x``. A look at a GPU's tensor would make
    the CPU wait for the GPU, and a compiled graph would keep the branch of its example."""
    return x.device.type == "cpu" and not in_a_graph()


def drop_empty_mask(mask: Optional[Tensor]) -> Optional[Tensor]:
    """Return None in place of a mask without any True, where a look at the mask is free. Attention without a
    mask is faster and gives the same results."""
    if mask is not None and can_look_at(mask) and not mask.any():
        return None
    return mask


def longest_sequence(lengths: Tensor, at_most: int) -> int:
    """Return the largest of ``lengths`` [B], or the upper bound ``at_most`` if reading them is expensive.

    Reading a tensor on a GPU makes the CPU wait for the GPU.
    """
    if can_look_at(lengths) and lengths.numel():
        return int(lengths.max())
    return at_most


def shortest_sequence(lengths: Tensor) -> int:
    """Return the smallest of ``lengths`` [B] if a look at them is free, and its bound 0 otherwise."""
    if can_look_at(lengths) and lengths.numel():
        return int(lengths.min())
    return 0


def on_device(x: Any, device: torch.device) -> Any:
    """Move a tensor, or a named tuple of tensors, to ``device``. None stays None."""
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, tuple):
        parts = [on_device(part, device) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    return x
