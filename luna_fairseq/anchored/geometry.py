"""Distances and positions for anchored attention, in the context and for the queries of a batch.

The encoder and the decoder compute these values once for all layers. An attention module that is called
without them computes its own.
"""

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.anchored.places import anchor_distances, beyond_nearest, middles
from luna_fairseq.anchored.segments import find_layout
from luna_fairseq.anchored.window import find_window
from luna_fairseq.modules.batch import Source


class Needs(NamedTuple):
    """Distances and positions required by the attention modules of an encoder or a decoder.

    Attributes:
        pack_heads: number of pack attention heads with a distance bias (default: 0, no distance bias).
        unpack: True if unpack attention has a distance bias (default: False).
        window: number of segments in the local window that a query additionally attends to (default: 0, no
            window).
        lookup: number of segments that a query chooses, whose tokens it attends to (default: 0, no look-up).
        diagonal: True if unpack attention has a diagonal prior (default: False).
        for_export: use the token layout that is valid for all lengths, for an exported graph (default:
            False).
    """

    pack_heads: int = 0
    unpack: bool = False
    window: int = 0
    lookup: int = 0
    diagonal: bool = False
    for_export: bool = False


class ContextGeometry(NamedTuple):
    """Distances and positions in a batch of contexts.

    The L rows of the packed sequence P divide a context of S tokens into equal segments. Values that no
    attention module needs are None.

    Shapes: batch size B, H pack attention heads.

    Attributes:
        pack_distance: distance [B, H, L, S] between each token and the centre of each row's segment, which is
            shifted slightly for each head. Measured in segments, minus the distance of the nearest token.
        unpack_distance: distance [B, 1, S, L] between each token and the centre of each row's segment.
            Measured in segments, minus the distance of the nearest row.
        window: neighbouring tokens that each token additionally attends to, see :class:`Window`.
        layout: layout of the tokens for a look-up, see :class:`Layout`.
        row_place: centre [B, L] of each row's segment, measured in tokens from the start of the context, for
            a diagonal prior.
        token_place: centre [B, S] of each token, measured in tokens from the start of the context, for a
            diagonal prior.
    """

    pack_distance: Optional[Tensor] = None
    unpack_distance: Optional[Tensor] = None
    window: Any = None
    layout: Any = None
    row_place: Optional[Tensor] = None
    token_place: Optional[Tensor] = None


class TargetPlaces(NamedTuple):
    """Target positions of the queries, used by the diagonal prior.

    Shapes: B sources with n hypotheses each, T queries per hypothesis. The queries of a source are grouped by
    hypothesis.

    Attributes:
        place: zero-based index [B, n * T] of each query's token in the target, or in its sentence if the
            target is a document.
        origin: in a document, number [B, n * T] of source tokens before the aligned source sentence (default:
            None, the target is a single sentence).
        middle: centre ``place + 1/2`` [B, 1, n * T, 1] of the token, in the dtype of the model, for decoding
            (default: None).
        width: tolerance ``sqrt(place + 1)`` [B, 1, n * T, 1] in the dtype of the model, for decoding
            (default: None).
    """

    place: Tensor
    origin: Optional[Tensor] = None
    middle: Optional[Tensor] = None
    width: Optional[Tensor] = None


def measure_places(places: TargetPlaces, dtype: torch.dtype) -> TargetPlaces:
    """Compute the centre and the tolerance of each query's position, once for all layers.

    Args:
        places: positions of the queries.
        dtype: dtype of the model.

    Returns:
        Positions with the attributes ``middle`` and ``width``.
    """
    place = places.place.to(dtype)[:, None, :, None]
    origin = None if places.origin is None else places.origin.to(dtype)
    return TargetPlaces(places.place, origin, place + 0.5, (place + 1).sqrt())


def context_geometry(needs: Needs, context: Tensor, packed: Tensor, source: Source) -> ContextGeometry:
    """Compute the distances and positions in a batch of contexts that attention modules need.

    Shapes: S context tokens, L rows of the packed sequence P, batch size B, width C.

    Args:
        needs: distances and positions to compute.
        context: context [S, B, C].
        packed: packed sequence P [L, B, C].
        source: padding masks of the context and of P.

    Returns:
        Distances and positions, with None for values that are not needed.
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
    """Return a padding mask, which is False everywhere if ``mask`` is None.

    Args:
        x: sequence [S, B, C] of length S, batch size B and width C, for the shape and device of the mask.
        mask: padding mask [B, S], or None.

    Returns:
        Padding mask [B, S].
    """
    return torch.zeros(x.shape[1::-1], dtype=torch.bool, device=x.device) if mask is None else mask
