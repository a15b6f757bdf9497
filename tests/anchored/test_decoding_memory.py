"""Test that keys and values prepared for decoding give the outputs of unprepared ones."""

import pytest
import torch
from tiny_luna import assert_close

from luna_fairseq.anchored.attention import AnchoredCrossAttention
from luna_fairseq.anchored.decoding_memory import DecodingMemory
from luna_fairseq.anchored.geometry import TargetPlaces, context_geometry
from luna_fairseq.anchored.softmax_cross import SoftmaxCrossAttention
from luna_fairseq.errors import InputError
from luna_fairseq.modules import Source
from luna_fairseq.modules.batch import Geometry
from luna_fairseq.modules.memory import map_tensors

C, H, L, S = 12, 3, 5, 9
KINDS = {
    "look-up": lambda: AnchoredCrossAttention(C, H, lookup=2),
    "look-up, diagonal": lambda: AnchoredCrossAttention(C, H, lookup=2, diagonal=True),
    "softmax": lambda: SoftmaxCrossAttention(C, H),
    "softmax, diagonal": lambda: SoftmaxCrossAttention(C, H, anchor_strength=4.0, diagonal=True),
}


def build(kind):
    torch.manual_seed(0)
    attention = KINDS[kind]().double().eval()
    with torch.no_grad():
        for name, parameter in attention.named_parameters():
            if "change" in name:  # strengths, ratios and gates away from their initial values
                parameter.normal_()
    return attention


@pytest.mark.parametrize("lengths", [None, (9, 4), (2, 0)])
@pytest.mark.parametrize("n, T", [(1, 1), (5, 1), (3, 4)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_origin", [False, True])
def test_a_prepared_memory_gives_the_same_outputs(kind, n, T, lengths, has_origin):
    attention, B = build(kind), 2
    query, packed, context = (
        torch.randn(*shape, C, dtype=torch.float64) for shape in ((T, B * n), (L, B), (S, B))
    )
    source = Source()
    if lengths is not None:
        length = torch.tensor(lengths)[:, None]
        source = Source(torch.arange(S) >= length, torch.arange(L) >= length)
    origin = torch.randint(0, 4, (B, n * T)) if has_origin else None
    places = TargetPlaces(torch.randint(0, 30, (B, n * T)), origin)
    geometry = Geometry(context_geometry(attention.needs(), context, packed, source), places)
    _, memory = attention.pack(packed, context, source, geometry)
    prepared = attention.prepare(memory, source)
    assert isinstance(prepared, DecodingMemory)
    expected, _ = attention.unpack(query, memory, source, geometry)
    assert_close(attention.unpack(query, prepared, source, geometry)[0], expected)

    order = torch.tensor([1, 0])
    rows = torch.arange(B * n).view(B, n).flip(0).flatten()
    swapped = Geometry(None, TargetPlaces(*(None if x is None else x[order] for x in places[:2])))
    other = Source(*(None if x is None else x[order] for x in source))
    found, _ = attention.unpack(query[:, rows], map_tensors(lambda x: x[order], prepared), other, swapped)
    assert_close(found, expected[:, rows])


@pytest.mark.parametrize("kind", KINDS)
def test_a_prepared_memory_reports_missing_weights_and_positions(kind):
    attention = build(kind)
    query, packed, context = (torch.randn(n, 1, C, dtype=torch.float64) for n in (1, L, S))
    places = TargetPlaces(torch.zeros(1, 1, dtype=torch.long))
    geometry = Geometry(context_geometry(attention.needs(), context, packed, Source()), places)
    prepared = attention.prepare(attention.pack(packed, context, geometry=geometry)[1], Source())
    if attention.diagonal is not None:
        with pytest.raises(InputError, match="needs the positions of the queries"):
            attention.unpack(query, prepared)
    if "look-up" in kind:
        with pytest.raises(InputError, match="need_weights=True from the first decoding step on"):
            attention.unpack(query, prepared, geometry=geometry, need_weights=True)


def test_a_memory_by_segments_is_not_converted():
    attention = build("look-up")
    packed, context = (torch.randn(n, 1, C, dtype=torch.float64) for n in (L, 100))
    geometry = Geometry(context_geometry(attention.needs(), context, packed, Source()), None)
    memory = attention.pack(packed, context, geometry=geometry)[1]
    assert attention.prepare(memory, Source()) is memory


def test_a_memory_with_weights_is_not_converted():
    attention = build("look-up")
    packed, context = (torch.randn(n, 1, C, dtype=torch.float64) for n in (L, S))
    geometry = Geometry(context_geometry(attention.needs(), context, packed, Source()), None)
    memory = attention.pack(packed, context, geometry=geometry, need_weights=True)[1]
    assert attention.prepare(memory, Source()) is memory
