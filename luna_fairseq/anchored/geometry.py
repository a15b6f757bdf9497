"""Geometry of a batch: places of the rows of P, of the context's tokens and of the queries.

The encoder and the decoder compute the geometry once for all layers. An attention that is called without a
geometry computes one for the call.
"""

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.anchored.places import anchor_distances, beyond_nearest, middles
from luna_fairseq.anchored.segments import find_layout
from luna_fairseq.anchored.window import find_window
from luna_fairseq.modules.batch import Source


class Needs(NamedTuple):
    """Distances and places that the attentions of an encoder or a decoder read.

    Attributes:
        pack_heads: number of heads of anchored pack attention (default: 0, pack attention is not anchored).
        unpack: unpack attention is anchored (default: False).
        window: number of segments in a window (default: 0, no window).
        lookup: number of segments whose tokens a query looks up (default: 0, no look-up).
        diagonal: unpack attention has a diagonal prior (default: False).
        for_export: use one form of look-up for all lengths, as an exported graph does (default: False).
    """

    pack_heads: int = 0
    unpack: bool = False
    window: int = 0
    lookup: int = 0
    diagonal: bool = False
    for_export: bool = False


class ContextGeometry(NamedTuple):
    """Distances between tokens and rows of P, and places of both, for one batch of contexts.

    The L rows of the packed sequence P divide a context of S tokens into equal segments. B is the batch size,
    and H the number of heads of pack attention. Attributes that no attention reads are None.

    Attributes:
        pack_distance: distance [B, H, L, S] between the place of each row and head and each token, in
            segments. The distance of the nearest token is subtracted.
        unpack_distance: distance [B, 1, S, L] between each token and each row, in segments. The distance of
            the nearest row is subtracted.
        window: tokens that each token reads in addition to the rows, see :class:`Window`.
        layout: arrangement of the tokens for a look-up, see :class:`Layout`.
        row_place: middle [B, L] of each row's segment for a diagonal prior, in tokens from the beginning.
        token_place: middle [B, S] of each token for a diagonal prior, in tokens from the beginning.
    """

    pack_distance: Optional[Tensor] = None
    unpack_distance: Optional[Tensor] = None
    window: Any = None
    layout: Any = None
    row_place: Optional[Tensor] = None
    token_place: Optional[Tensor] = None


class TargetPlaces(NamedTuple):
    """Places of the queries in the target, for a diagonal prior.

    The T queries of a target belong to n hypotheses for each of B sources.

    Attributes:
        place: index [B n, T] of each query's token in the target, or in its sentence.
        origin: number [B n, T] of source tokens before the sentence that the token belongs to (default: None,
            the target is one sentence).
        middle: place + 1/2 [B n, T] in the dtype of the model, which decoding reads (default: None).
        width: tolerance sqrt(place + 1) [B n, T] in the dtype of the model, which decoding reads (default:
            None).
    """

    place: Tensor
    origin: Optional[Tensor] = None
    middle: Optional[Tensor] = None
    width: Optional[Tensor] = None


def measure_places(places: TargetPlaces, dtype: torch.dtype) -> TargetPlaces:
    """Compute the middle and the tolerance of each query's place, once for all layers.

    Args:
        places: places of the queries.
        dtype: dtype of the model.

    Returns:
        The places with all attributes.
    """
    place = places.place.to(dtype)
    origin = None if places.origin is None else places.origin.to(dtype)
    return TargetPlaces(places.place, origin, place + 0.5, (place + 1).sqrt())


def context_geometry(needs: Needs, context: Tensor, packed: Tensor, source: Source) -> ContextGeometry:
    """Compute the distances and places of a batch of contexts that the attentions need.

    S is the length of the context, L the number of rows of the packed sequence P, B the batch size, and C the
    model width.

    Args:
        needs: distances and places to compute.
        context: context X [S, B, C].
        packed: packed sequence P [L, B, C].
        source: masks of the context and of P.

    Returns:
        The distances and places; None for those that are not needed.
    """
    masks = full_mask(context, source.padding_mask), full_mask(packed, source.packed_padding_mask)
    found = ContextGeometry()
    if needs.pack_heads:
        distance = beyond_nearest(anchor_distances(*masks, num_heads=needs.pack_heads))
        found = found._replace(pack_distance=distance.to(context.dtype))
    if needs.unpack:
        distance = beyond_nearest(anchor_distances(*masks).transpose(2, 3))
        found = found._replace(unpack_distance=distance.to(context.dtype))
    if needs.window:
        complete = source.padding_mask is None and source.packed_padding_mask is None
        found = found._replace(window=find_window(*masks, needs.window, complete))
    if needs.lookup:
        found = found._replace(layout=find_layout(*masks, needs.lookup, needs.for_export))
    if needs.diagonal:
        row_place, token_place = middles(*masks)
        found = found._replace(row_place=row_place, token_place=token_place)
    return found


def full_mask(x: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Return a padding mask, all False if the mask is None.

    Args:
        x: sequence [S, B, C], for the shape and device of the mask.
        mask: padding mask [B, S], or None.

    Returns:
        The padding mask [B, S].
    """
    return torch.zeros(x.shape[1::-1], dtype=torch.bool, device=x.device) if mask is None else mask
