"""Test anchored attention modules with and without a look-up, a window and a diagonal prior."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_luna import assert_close

from luna_fairseq.anchored.attention import AnchoredCrossAttention, AnchoredSelfAttention
from luna_fairseq.anchored.geometry import TargetPlaces
from luna_fairseq.anchored.softmax_cross import SoftmaxCrossAttention
from luna_fairseq.anchored.strengths import AnchorBias
from luna_fairseq.errors import InputError
from luna_fairseq.modules import Geometry, LunaAttention, Source
from luna_fairseq.modules.memory import map_tensors
from luna_fairseq.optim.apollo import Apollo

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
C, HEADS, PACK_HEADS = 12, 3, 2
SELF, CROSS, SOFTMAX = AnchoredSelfAttention, AnchoredCrossAttention, SoftmaxCrossAttention
KINDS = {
    "anchored": {"class": CROSS},
    "anchored self": {"class": SELF},
    "window": {"class": SELF, "window": 3},
    "window untied": {"class": SELF, "window": 1, "untie_kv": True},
    "look-up": {"class": CROSS, "lookup": 2},
    "look-up by parts": {"class": CROSS, "lookup": 2},
    "look-up by parts untied": {"class": CROSS, "lookup": 1, "untie_kv": True},
    "softmax": {"class": SOFTMAX, "anchor_strength": 4.0},
    "diagonal": {"class": CROSS, "diagonal": True},
    "look-up, diagonal": {"class": CROSS, "lookup": 2, "diagonal": True},
    "look-up by parts, diagonal": {"class": CROSS, "lookup": 2, "diagonal": True},
    "softmax, diagonal": {"class": SOFTMAX, "anchor_strength": 4.0, "diagonal": True},
}
IN_SEGMENTS = {"look-up by parts", "look-up by parts untied", "look-up by parts, diagonal"}


def marked(names):
    return [pytest.param(n, marks=[pytest.mark.in_segments] if n in IN_SEGMENTS else []) for n in names]


kinds = pytest.mark.parametrize("kind", marked(KINDS))


def attention(**options):
    torch.manual_seed(0)
    make = options.pop("class", LunaAttention)
    module = make(C, HEADS, **{"num_pack_heads": PACK_HEADS, **options}).eval().double()
    for name, parameter in module.named_parameters():
        if name.endswith(("bias", "change")):
            torch.nn.init.normal_(parameter)
    return module


def sentences(lengths, rows, before=0, after=0, seed=0):
    """Return queries, packed sequence P and masks for sentences of these lengths.

    The queries are also the context [S, B, C]. P has the shape [L, B, C]. Values at padding differ from call
    to call.
    """
    S, L = before + max(lengths) + after, max(rows)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(S, len(lengths), C, dtype=torch.float64)
    packed = torch.randn(L, len(rows), C, dtype=torch.float64)
    mask, packed_mask = (
        torch.ones(len(lengths), S, dtype=torch.bool),
        torch.ones(len(rows), L, dtype=torch.bool),
    )
    for b, (n, l_b) in enumerate(zip(lengths, rows)):
        x[before : before + n, b] = torch.randn(n, C, generator=generator, dtype=torch.float64)
        packed[:l_b, b] = torch.randn(l_b, C, generator=generator, dtype=torch.float64)
        mask[b, before : before + n] = packed_mask[b, :l_b] = False
    return x, packed, mask, packed_mask


@kinds
@settings(deadline=None, max_examples=15)
@given(
    n=st.integers(1, 14),
    length=st.integers(1, 6),
    before=st.integers(0, 3),
    after=st.integers(0, 3),
    fixed=st.booleans(),
)
def test_moving_a_sentence_inside_its_padding_changes_nothing(kind, n, length, before, after, fixed):
    module = attention(**KINDS[kind])
    rows = length if fixed else min(n, length)
    results = []
    for sides in ((0, 0), (before, after)):
        x, packed, mask, packed_mask = sentences([n], [rows], *sides)
        source, places = Source(mask, packed_mask), ((~mask).cumsum(dim=1) - 1).clamp(min=0)
        geometry = module.find_geometry(x, packed, x, source)._replace(target=TargetPlaces(places))
        given = {"source": source, "geometry": geometry}
        output, packed_context, weights = module(x, packed, x, **given, need_weights=True)
        real = slice(sides[0], sides[0] + n)
        results.append((output[real], packed_context, weights[:, :, real, real]))
    for actual, expected in zip(*results):
        assert_close(actual, expected)


@kinds
def test_sentences_of_a_batch_do_not_mix(kind):
    module, lengths, rows = attention(**KINDS[kind]), [13, 1, 5, 4], [5, 1, 5, 4]
    x, packed, mask, packed_mask = sentences(lengths, rows)
    output, packed_context, _ = module(x, packed, x, mask, packed_mask)
    for b, (n, l_b) in enumerate(zip(lengths, rows)):
        one, one_packed = x[:n, b : b + 1], packed[:l_b, b : b + 1]
        alone, alone_packed, _ = module(one, one_packed, one)
        assert_close(output[:n, b : b + 1], alone)
        assert_close(packed_context[:l_b, b : b + 1], alone_packed)


@kinds
@pytest.mark.parametrize("length", [4, 100])
def test_a_batch_may_be_empty(kind, length):
    module = attention(**KINDS[kind])
    x, packed = (torch.randn(n, 0, C, dtype=torch.float64, requires_grad=True) for n in (length, 5))
    output, packed_context, weights = module(x, packed, x, need_weights=True)
    assert output.shape == x.shape and weights.shape == (HEADS, 0, length, length)
    (output.sum() + packed_context.sum()).backward()
    geometry = module.find_geometry(x, packed, x, Source())
    memory = module.prepare(module.pack(packed, x, geometry=geometry)[1], Source())
    assert module.unpack(x, memory, geometry=geometry)[0].shape == x.shape


@pytest.mark.skipif(TORCH < (2, 1), reason="needs torch 2.1, which has shapes of all operations")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("length", "rows"), [(100, 5), (300, 40)])
def test_shapes_are_computed_on_the_device_meta(kind, length, rows):
    """The lengths of contexts are unknown on this device."""
    module = attention(**KINDS[kind]).to("meta")
    x, packed = (torch.empty(n, 2, C, dtype=torch.float64, device="meta") for n in (length, rows))
    output, packed_context, _ = module(x, packed, x)
    output.sum().backward()
    assert output.shape == x.shape and packed_context.shape == packed.shape


@pytest.mark.parametrize("n", [1, 4, 6])
def test_strong_anchors_pack_a_short_sentence_unchanged(n):
    module = attention(**{"class": CROSS}, anchor_strength=4000.0)
    x, packed, _, _ = sentences([n], [n])
    weights = module.weights(x, packed, x).pack
    assert_close(weights, torch.eye(n, dtype=torch.float64).expand_as(weights))


@pytest.mark.parametrize("options", [KINDS["anchored"], KINDS["anchored self"], KINDS["diagonal"]])
def test_anchored_attention_without_strength_is_the_papers_attention(options):
    module, plain = attention(anchor_strength=1e-9, **options), attention()
    plain.load_state_dict(module.state_dict(), strict=False)
    for name in ("pack_anchor", "unpack_anchor", "diagonal"):
        if getattr(module, name) is not None:
            torch.nn.init.constant_(getattr(module, name).change, -50)
    x, packed, mask, packed_mask = sentences([9, 4], [5, 4])
    output, packed_context, _ = module(x, packed, x, mask, packed_mask)
    expected, expected_packed, _ = plain(x, packed, x, mask, packed_mask)
    assert_close(output, expected)
    assert_close(packed_context, expected_packed)


@pytest.mark.parametrize(
    "kind", marked(kind for kind in KINDS if KINDS[kind]["class"] is not SELF)
)  # a whole sentence or none
@pytest.mark.parametrize("sizes", [[1] * 6, [2, 1, 3]])
def test_decoding_step_by_step_equals_one_call(kind, sizes):
    module = attention(**KINDS[kind])
    context, packed, mask, packed_mask = sentences([11, 3, 7, 4], [5, 3, 5, 4])
    query = torch.randn(6, 4, C, dtype=torch.float64)
    expected, _, expected_weights = module(query, packed, context, mask, packed_mask, need_weights=True)
    source = Source(mask, packed_mask)
    geometry = module.find_geometry(query, packed, context, source)
    _, memory = module.pack(packed, context, source, geometry, True)
    order = torch.tensor([2, 0, 3])
    reordered = map_tensors(lambda x: x[order], memory)
    steps, weights, later = [], [], []
    places = torch.arange(6).expand(4, -1).split(sizes, dim=1)
    for part, other, place in zip(query.split(sizes), query[:, order].split(sizes), places):
        step = Geometry(target=TargetPlaces(place))  # a step needs no geometry of the context
        output, w = module.unpack(part, memory, source, step, True)
        steps.append(output)
        weights.append(w)
        step = Geometry(target=TargetPlaces(place[order]))
        later.append(module.unpack(other, reordered, Source(mask[order], packed_mask[order]), step)[0])
    assert_close(torch.cat(steps), expected)
    assert_close(torch.cat(weights, dim=2), expected_weights)
    assert_close(torch.cat(later), expected[:, order])


@kinds
def test_weights_over_the_context_sum_to_one(kind):
    module = attention(**KINDS[kind])
    x, packed, mask, packed_mask = sentences([11, 3], [5, 3])
    _, _, weights = module(x, packed, x, mask, packed_mask, need_weights=True)
    assert_close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))
    assert not (weights * mask[None, :, None, :]).any()


@pytest.mark.parametrize("diagonal, start", [(False, -4.0), (True, 0.0)])
def test_the_look_up_gate_is_open_initially_only_with_a_diagonal_prior(diagonal, start):
    module = CROSS(C, HEADS, lookup=2, diagonal=diagonal)
    assert torch.equal(module.lookup_gate(), torch.full((HEADS,), start))


@pytest.mark.parametrize("read", [12, pytest.param(8, marks=pytest.mark.in_segments)])  # 2 of 4 tokens
def test_an_open_gate_reads_the_token_and_not_its_row(read):
    module = attention(**KINDS["look-up"])
    x, packed, _, _ = sentences([12], [3])
    source = Source()
    with torch.no_grad():
        module.lookup_gate.change.fill_(1000.0)
        geometry = module.find_geometry(x, packed, x, source)
        _, memory = module.pack(packed, x, source, geometry, True)
        memory = memory._replace(mean_pack_weights=torch.zeros_like(memory.mean_pack_weights))
        _, weights = module.unpack(x, memory, source, geometry, True)
    assert_close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))
    assert (weights > 0).sum(dim=-1).max() == read


@pytest.mark.parametrize("strength", [0.25, 1.0, 4.0, 30.0])
def test_the_initial_strength_is_the_argument(strength):
    bias = AnchorBias([strength] * 3)
    assert_close(bias.strength(), torch.full((3,), strength), torch.float32)
    distance = torch.rand(2, 1, 4, 5)
    assert_close(bias(distance), -strength * distance.expand(2, 3, 4, 5), torch.float32)


@pytest.mark.parametrize("decay_type", ["L2", "decoupled", "stable"])
def test_weight_decay_draws_the_strength_to_its_initial_value(decay_type):
    bias = AnchorBias([4.0] * 3)
    torch.nn.init.constant_(bias.change, 0.5)
    optimizer = Apollo(bias.parameters(), lr=1e-3, weight_decay=0.1, weight_decay_type=decay_type)
    for _ in range(50):
        bias.change.grad = torch.zeros(3)
        optimizer.step()
    assert (bias.strength() < AnchorBias([4.5] * 3).strength()).all() and (
        bias.strength() >= 4.0 - 1e-5
    ).all()
    assert (bias.change < 0.5).all()


def test_apollo_trains_strengths_and_gates():
    torch.manual_seed(0)
    module = CROSS(C, HEADS, lookup=1, diagonal=True)
    optimizer = Apollo(module.parameters(), lr=1e-2)
    x, packed, mask, packed_mask = (
        t.float() if t.is_floating_point() else t for t in sentences([9, 5], [3, 3])
    )
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (module(x, packed, x, mask, packed_mask)[0] - x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert 0.5 < module.pack_anchor.strength().min() and module.pack_anchor.strength().max() < 20
    assert module.lookup_gate().abs().max() < 20
    assert module.diagonal.strength().max() < 20 and (module.diagonal.ratio() - 1).abs().max() < 1
    assert module.diagonal.change.any() and module.diagonal.ratio_change.any()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"class": CROSS, "anchor_strength": 0.0}, "--anchor-strength must be a positive number, got 0"),
        ({"class": SELF, "anchor_strength": -1.0}, "--anchor-strength must be a positive number, got -1"),
        (
            {"class": CROSS, "anchor_strength": float("nan")},
            "--anchor-strength must be a positive number, got nan",
        ),
        ({"class": CROSS, "lookup": -1}, r"--packed-lookup must be 0 \(no look-up\) or more, got -1"),
        ({"class": SELF, "window": 2}, "--local-parts must be an odd number of segments"),
    ],
)
def test_bad_arguments_are_rejected(options, message):
    with pytest.raises(InputError, match=message):
        attention(**options)


@pytest.mark.parametrize("kind", ["plain", *marked(KINDS)])
def test_masks_that_are_passed_twice_are_rejected(kind):
    module = attention(**KINDS.get(kind, {}))
    x, packed, mask, packed_mask = sentences([5, 3], [3, 2])
    for masks in ((mask, None), (None, packed_mask)):
        with pytest.raises(InputError, match="either padding masks or source, got both"):
            module(x, packed, x, *masks, source=Source(mask))


def test_pack_and_unpack_need_the_geometry_of_the_context():
    module = attention(**KINDS["anchored self"])
    x, packed, _, _ = sentences([5], [3])
    _, memory = module.pack(packed, x, geometry=module.find_geometry(x, packed, x, Source()))
    for run in (lambda: module.pack(packed, x), lambda: module.unpack(x, memory)):
        with pytest.raises(InputError, match="needs the geometry of the context"):
            run()


def test_a_decoding_step_with_a_diagonal_prior_needs_target_positions():
    module = attention(**KINDS["diagonal"])
    x, packed, _, _ = sentences([5], [3])
    _, memory = module.pack(packed, x, geometry=module.find_geometry(x, packed, x, Source()))
    with pytest.raises(InputError, match="needs the positions of the queries"):
        module.unpack(x[:1], memory)


def test_a_window_is_rejected_in_cross_attention():
    module = attention(**KINDS["window"])
    x, packed, _, _ = sentences([9], [3])
    with pytest.raises(InputError, match="Expected a query of 9 tokens, as many as the context has, got 7"):
        module(x[:7], packed, x)
