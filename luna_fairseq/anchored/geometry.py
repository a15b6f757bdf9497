"""Distances and positions for anchored attention, in the context and for the queries of a batch.

Anchored attention divides the context into segments, runs of consecutive tokens. Row i of the packed sequence
P summarizes segment i. The encoder and the decoder compute the distances between tokens and segments once for
all layers. An attention module that is called without them computes its own.
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

    The context is divided into segments, runs of consecutive tokens, one per row of the packed sequence P.

    Attributes:
        pack_heads: number of pack attention heads whose logits are reduced for tokens far from a row's
            segment (default: 0, no distance bias).
        unpack: True if the logits of unpack attention are reduced for rows of distant segments (default:
            False).
        window: number of neighbouring segments whose tokens each query also attends to (default: 0, no
            window).
        lookup: number of segments, chosen by each query, whose tokens the query also attends to (default: 0,
            no look-up).
        diagonal: True if a bias favours source tokens near the position expected for a target token (default:
            False).
        for_export: compute tensors that are valid for all sequence lengths, as required by an exported graph
            (default: False).
    """

    pack_heads: int = 0
    unpack: bool = False
    window: int = 0
    lookup: int = 0
    diagonal: bool = False
    for_export: bool = False


class ContextGeometry(NamedTuple):
    """Distances and positions in a batch of contexts, shared by all layers.

    The context has S tokens and is divided into L segments, runs of consecutive tokens. Row i of the packed
    sequence P summarizes segment i. Values that no attention module needs are None.

    Shapes: batch size B, H pack attention heads.

    Attributes:
        pack_distance: distance [B, H, L, S] from the centre of each row's segment to each token, minus the
            distance of the nearest token. The unit is the width of a segment. The centre is shifted slightly
            for each head.
        unpack_distance: distance [B, 1, S, L] from each token to the centre of each row's segment, minus the
            distance of the nearest row. The unit is the width of a segment.
        window: a :class:`luna_fairseq.anchored.window.Window`, the neighbouring tokens that each token also
            attends to.
        layout: a :class:`luna_fairseq.anchored.segments.Layout`, the arrangement of the tokens by segment for
            a look-up, in which queries attend to the tokens of a few segments.
        row_place: centre [B, L] of each row's segment, in tokens from the start of the context. Used by a
            diagonal prior.
        token_place: centre [B, S] of each token, in tokens from the start of the context. The centre of token
            0 is 0.5. Used by a diagonal prior.
    """

    pack_distance: Optional[Tensor] = None
    unpack_distance: Optional[Tensor] = None
    window: Any = None
    layout: Any = None
    row_place: Optional[Tensor] = None
    token_place: Optional[Tensor] = None


class TargetPlaces(NamedTuple):
    """Target positions of the queries, used by the diagonal prior of cross-attention.

    The diagonal prior favours source tokens near the position that is expected for a target token. A
    hypothesis is one candidate translation in beam search. In training, each source has n = 1 hypothesis.

    Shapes: B sources with n hypotheses each, T queries per hypothesis. The queries of a source are ordered by
    hypothesis, then by position.

    Attributes:
        place: zero-based index [B, n * T] of each query's token in the target. In a document, the index
            restarts at each sentence.
        origin: in a document, number [B, n * T] of source tokens before the source sentence that the query's
            sentence is aligned with (default: None, the target is a single sentence).
        middle: ``place + 1/2`` [B, 1, n * T, 1], the centre of the token, in the dtype of the model.
            Precomputed for decoding (default: None).
        width: ``sqrt(place + 1)`` [B, 1, n * T, 1], the width of the prior around the expected source
            position, in tokens and in the dtype of the model. Precomputed for decoding (default: None).
    """

    place: Tensor
    origin: Optional[Tensor] = None
    middle: Optional[Tensor] = None
    width: Optional[Tensor] = None


def measure_places(places: TargetPlaces, dtype: torch.dtype) -> TargetPlaces:
    """Precompute the centre of each query's token and the width of its diagonal prior, for all layers.

    The diagonal prior favours source tokens near the position that is expected for a target token. For a
    token with index t, the centre is ``t + 1/2``, and the width of the prior is ``sqrt(t + 1)`` source
    tokens.

    Args:
        places: target positions, with the indices t as ``place`` [B, T] for batch size B and T queries.
        dtype: dtype of the model, which is also the dtype of the results.

    Returns:
        The target positions, with the centres as ``middle`` and the widths as ``width``, both [B, 1, T, 1].
    """
    place = places.place.to(dtype)[:, None, :, None]
    origin = None if places.origin is None else places.origin.to(dtype)
    return TargetPlaces(places.place, origin, place + 0.5, (place + 1).sqrt())


def context_geometry(needs: Needs, context: Tensor, packed: Tensor, source: Source) -> ContextGeometry:
    """Compute the distances and positions in a batch of contexts that attention modules need.

    The context is divided into L segments, runs of consecutive tokens. Row i of the packed sequence P
    summarizes segment i.

    Shapes: S context tokens, L rows of P, batch size B, width C.

    Args:
        needs: distances and positions to compute.
        context: context [S, B, C]. Only its shape, dtype and device are used.
        packed: packed sequence P [L, B, C]. Only its shape and device are used.
        source: padding masks of the context and of P.

    Returns:
        The distances between tokens and segments and the positions of both, with None for values that are not
        needed.
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
