"""Distances and positions for anchored attention, computed once for all layers of an encoder or a decoder.

places.py defines segments, their centres and distances. Shapes: batch size B, width C, S context tokens, at
most W tokens in a segment, L rows of the packed sequence P.
"""

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.anchored.places import (
    anchor_distances,
    beyond_nearest,
    find_centres,
    move_padding_away,
    token_places_in_segments,
)
from luna_fairseq.anchored.segments import arrange_places, find_layout
from luna_fairseq.anchored.window import find_window
from luna_fairseq.modules.batch import Source


class Needs(NamedTuple):
    """Features of attention modules that need distances or positions. Unused features are 0 or False.

    Attributes:
        pack_heads: number of pack attention heads with a distance bias.
        unpack: True if unpack attention has a distance bias.
        window: number of segments in a window, including the query's own, to whose tokens a query attends.
        lookup: number of segments that a query chooses and whose tokens it attends to.
        diagonal: True if cross-attention has a diagonal prior.
        for_export: True to compute tensors that are valid for all sequence lengths.
    """

    pack_heads: int = 0
    unpack: bool = False
    window: int = 0
    lookup: int = 0
    diagonal: bool = False
    for_export: bool = False


class ContextGeometry(NamedTuple):
    """Distances and positions of the tokens in a batch of contexts, shared by all layers.

    Distances are in units of the segment width. They are relative: the nearest token (or row) has distance 0.
    Positions are in tokens from the start of the context. Fields that are not needed are None. Shapes: batch
    size B, H heads.

    Attributes:
        pack_distance: distance [B, H, L, S] from the centre of each segment to each token.
        unpack_distance: distance [B, 1, S, L] from each token to the centre of each segment.
        window: a :class:`luna_fairseq.anchored.window.Window`.
        layout: a :class:`luna_fairseq.anchored.segments.Layout` for a look-up.
        row_place: position [B, L] of the centre of each segment. It is 1e15 at padding.
        token_place: position [B, S] of the centre of each token. It is 1e15 at padding. For a look-up whose
            tokens are arranged by segment, the shape is [B, L, W].
        key_place: positions [B, L + S] of all segments and tokens, for a dense look-up.
    """

    pack_distance: Optional[Tensor] = None
    unpack_distance: Optional[Tensor] = None
    window: Any = None
    layout: Any = None
    row_place: Optional[Tensor] = None
    token_place: Optional[Tensor] = None
    key_place: Optional[Tensor] = None


class TargetPlaces(NamedTuple):
    """Positions of target tokens for a diagonal prior, a bias toward source tokens near an expected position.

    There are n hypotheses of T tokens for each of B sources.

    Attributes:
        place: index [B, n * T] of each query's token, counted from 0 at the start of the target or, in a
            document, at the start of its sentence.
        origin: number [B, n * T] of source tokens before the aligned source sentence. None if the target is
            not a document.
        middle: centre ``place + 1/2`` [B, 1, n * T, 1] of the token, in float32 or float64.
        width: divisor ``sqrt(place + 1)`` [B, 1, n * T, 1] of the distances in the prior.
    """

    place: Tensor
    origin: Optional[Tensor] = None
    middle: Optional[Tensor] = None
    width: Optional[Tensor] = None


def measure_places(places: TargetPlaces, dtype: torch.dtype) -> TargetPlaces:
    """Return a copy of ``places`` with ``middle = place + 1/2`` and ``width = sqrt(place + 1)`` per token.

    Both fields are [B, 1, n * T, 1] in ``dtype``. :class:`TargetPlaces` describes them.
    """
    place = places.place.to(dtype)[:, None, :, None]
    return places._replace(middle=place + 0.5, width=(place + 1).sqrt())


def context_geometry(needs: Needs, context: Tensor, packed: Tensor, source: Source) -> ContextGeometry:
    """Compute the distances and positions of context tokens that attention modules need.

    ``needs`` selects the tensors to compute. Only the shape, dtype and device of context [S, B, C] and packed
    [L, B, C] are used. ``source`` holds the padding masks of both.
    """
    masks = full_mask(context, source.padding_mask), full_mask(packed, source.packed_padding_mask)
    found = ContextGeometry()
    place = token_places_in_segments(*masks) if needs.pack_heads or needs.unpack else None
    if needs.pack_heads:
        distance = beyond_nearest(anchor_distances(*masks, num_heads=needs.pack_heads, place=place))
        found = found._replace(pack_distance=distance.to(context.dtype))
    if needs.unpack:
        distance = beyond_nearest(anchor_distances(*masks, place=place).transpose(2, 3))
        found = found._replace(unpack_distance=distance.to(context.dtype))
    complete = source.padding_mask is None and source.packed_padding_mask is None
    if needs.window:
        found = found._replace(window=find_window(*masks, needs.window, complete))
    if needs.lookup:
        found = found._replace(layout=find_layout(*masks, needs.lookup, needs.for_export, complete))
    if needs.diagonal:
        row_place, token_place = find_centres(*masks)
        row_place = move_padding_away(row_place, source.packed_padding_mask)
        token_place = move_padding_away(token_place, source.padding_mask)
        if found.layout is not None and found.layout.position is None:
            found = found._replace(key_place=torch.cat([row_place, token_place], dim=1))
        elif found.layout is not None:
            token_place = arrange_places(token_place, found.layout.position)
        found = found._replace(row_place=row_place, token_place=token_place)
    return found


def full_mask(x: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Return the padding mask [B, S] of x [S, B, C]. If ``mask`` is None, the result is False everywhere."""
    return torch.zeros(x.shape[1::-1], dtype=torch.bool, device=x.device) if mask is None else mask
