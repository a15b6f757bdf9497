"""Luna attention with anchors and with a look-up, as a module."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_luna import assert_close

from luna_fairseq.errors import InputError
from luna_fairseq.modules import LunaAttention, SoftmaxCrossAttention
from luna_fairseq.modules.anchors import AnchorBias
from luna_fairseq.optim.apollo import Apollo

C, HEADS, PACK_HEADS = 12, 3, 2
KINDS = {
    "anchored": {"anchor_strength": 4.0},
    "anchored self": {"anchor_strength": 4.0, "anchored_unpack": True},
    "local parts": {"anchor_strength": 4.0, "anchored_unpack": True, "local_parts": 3},
    "local parts untied": {
        "anchor_strength": 4.0,
        "anchored_unpack": True,
        "local_parts": 1,
        "untie_kv": True,
    },
    "look-up": {"anchor_strength": 4.0, "lookup": 2},
    "look-up by parts": {"anchor_strength": 4.0, "lookup": 2},
    "look-up by parts untied": {"anchor_strength": 4.0, "lookup": 1, "untie_kv": True},
    "look-up shared": {"anchor_strength": 4.0, "lookup": 2, "share_token_projections": True},
    "look-up by parts shared": {"anchor_strength": 4.0, "lookup": 2, "share_token_projections": True},
    "look-up by parts shared untied": {
        "anchor_strength": 4.0,
        "lookup": 2,
        "share_token_projections": True,
        "untie_kv": True,
    },
    "local parts shared": {
        "anchor_strength": 4.0,
        "anchored_unpack": True,
        "local_parts": 3,
        "share_token_projections": True,
    },
    "softmax": {"anchor_strength": 4.0, "class": SoftmaxCrossAttention},
    "diagonal": {"anchor_strength": 4.0, "diagonal": True},
    "look-up, diagonal": {"anchor_strength": 4.0, "lookup": 2, "diagonal": True},
    "look-up by parts, diagonal": {"anchor_strength": 4.0, "lookup": 2, "diagonal": True},
    "softmax, diagonal": {"anchor_strength": 4.0, "diagonal": True, "class": SoftmaxCrossAttention},
}
kinds = pytest.mark.parametrize("kind", list(KINDS))


def attention(**options):
    torch.manual_seed(0)
    make = options.pop("class", LunaAttention)
    module = make(C, HEADS, **{"num_pack_heads": PACK_HEADS, **options}).eval().double()
    for name, parameter in module.named_parameters():
        if name.endswith(("bias", "change")):
            torch.nn.init.normal_(parameter)
    return module


def sentences(lengths, rows, before=0, after=0, seed=0):
    """Query and context (the same) [S, B, C], P [L, B, C], and their masks; what is padded differs at every
    call."""
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
        place = ((~mask).cumsum(dim=1) - 1).clamp(min=0)
        output, packed_context, weights = module(x, packed, x, mask, packed_mask, True, query_place=place)
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


@pytest.mark.parametrize("n", [1, 4, 6])
def test_a_sentence_no_longer_than_p_is_packed_as_it_is_by_strong_anchors(n):
    module = attention(anchor_strength=4000.0)
    x, packed, _, _ = sentences([n], [n])
    _, weights = module.pack(packed, x, need_weights=True, anchors=module.find_anchors(x, packed))
    assert_close(weights, torch.eye(n, dtype=torch.float64).expand_as(weights))


@pytest.mark.parametrize("options", [{}, {"anchored_unpack": True}, {"diagonal": True}])
def test_without_strength_it_is_the_papers_attention(options):
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


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "local" not in kind])  # all of a sentence or none
@pytest.mark.parametrize("sizes", [[1] * 6, [2, 1, 3]])
def test_step_by_step_equals_all_at_once(kind, sizes):
    module = attention(**{**KINDS[kind], "anchored_unpack": False})
    context, packed, mask, packed_mask = sentences([11, 3, 7, 4], [5, 3, 5, 4])
    query = torch.randn(6, 4, C, dtype=torch.float64)
    expected, _, expected_weights = module(query, packed, context, mask, packed_mask, need_weights=True)
    anchors = module.find_anchors(context, packed, mask, packed_mask)
    packed_context, pack_weights = module.pack(packed, context, mask, True, anchors)
    kept = module.keep(packed_context, pack_weights, context, mask, anchors)
    order = torch.tensor([2, 0, 3])
    reordered = kept.select(order)
    steps, weights, later = [], [], []
    places = torch.arange(6).expand(4, -1).split(sizes, dim=1)
    for part, other, place in zip(query.split(sizes), query[:, order].split(sizes), places):
        output, w = module.unpack(part, kept, packed_mask, True, query_place=place)
        steps.append(output)
        weights.append(w)
        later.append(module.unpack(other, reordered, packed_mask[order], query_place=place[order])[0])
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
def test_the_gate_begins_open_only_where_a_diagonal_says_what_to_choose(diagonal, start):
    module = LunaAttention(C, HEADS, anchor_strength=4.0, lookup=2, diagonal=diagonal)
    assert torch.equal(module.lookup_gate(), torch.full((HEADS,), start))


@pytest.mark.parametrize("form, read", [("whole", 12), ("by parts", 8)])  # two parts of four tokens
def test_a_look_up_with_an_open_gate_reads_the_token_and_not_its_row(form, read):
    module = attention(anchor_strength=4.0, lookup=2)
    x, packed, _, _ = sentences([12], [3])
    with torch.no_grad():
        module.lookup_gate.change.fill_(1000.0)
        anchors = module.find_anchors(x, packed)
        packed_context, pack_weights = module.pack(packed, x, None, True, anchors)
        kept = module.keep(packed_context, torch.zeros_like(pack_weights), x, None, anchors)
        _, weights = module.unpack(x, kept, None, True)
    assert_close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))
    assert (weights > 0).sum(dim=-1).max() == read


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "shared" in kind])
def test_shared_projections_are_those_of_pack_attention_and_used_once(kind):
    shared = attention(**KINDS[kind])
    own = attention(**{**KINDS[kind], "share_token_projections": False})
    state = shared.state_dict()
    assert not any(name.startswith("token_") for name in state)
    for name in "kv":
        first = f"pack_{name if shared.untie_kv else 'kv'}_proj"
        state.update({f"token_{name}_proj.{part}": state[f"{first}.{part}"] for part in ("weight", "bias")})
    own.load_state_dict(state)
    x, packed, mask, packed_mask = sentences([7, 5], [4, 3])
    calls = []
    getattr(shared, first).register_forward_hook(lambda *_: calls.append(1))
    for a, b in zip(*(m(x, packed, x, mask, packed_mask, True) for m in (shared, own))):
        assert_close(a, b)
    assert len(calls) == 1


@pytest.mark.parametrize("strength", [0.25, 1.0, 4.0, 30.0])
def test_the_strength_at_the_start_is_what_was_asked_for(strength):
    bias = AnchorBias([strength] * 3)
    assert_close(bias.strength(), torch.full((3,), strength), torch.float32)
    distance = torch.rand(2, 1, 4, 5)
    assert_close(bias(distance), -strength * distance.expand(2, 3, 4, 5), torch.float32)


@pytest.mark.parametrize("decay_type", ["L2", "decoupled", "stable"])
def test_weight_decay_draws_the_strength_to_its_start(decay_type):
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


def test_apollo_trains_strength_and_gate_as_it_trains_the_rest():
    torch.manual_seed(0)
    module = LunaAttention(C, HEADS, anchor_strength=4.0, lookup=1, diagonal=True)
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
        ({"anchor_strength": 0.0}, "--anchor-strength is 0: it must be a positive number"),
        ({"anchor_strength": -1.0}, "--anchor-strength is -1: it must be a positive number"),
        ({"anchor_strength": float("nan")}, "--anchor-strength is nan: it must be a positive number"),
        ({"anchor_strength": 4.0, "lookup": -1}, "--packed-lookup is -1: it must be 0"),
        ({"lookup": 2}, "--packed-lookup needs --anchored-packed"),
        (
            {"anchor_strength": 4.0, "lookup": 2, "class": SoftmaxCrossAttention},
            "--packed-lookup and --cross-attention softmax do not go together",
        ),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        attention(**options)


def test_anchored_attention_step_by_step_needs_places():
    module = attention(anchor_strength=4.0)
    x, packed, _, _ = sentences([5], [3])
    with pytest.raises(InputError, match="give what find_anchors returns"):
        module.pack(packed, x)


def test_a_diagonal_step_by_step_needs_the_places_of_the_steps():
    module = attention(**KINDS["diagonal"])
    x, packed, _, _ = sentences([5], [3])
    anchors = module.find_anchors(x, packed)
    kept = module.keep(module.pack(packed, x, anchors=anchors)[0], anchors=anchors)
    with pytest.raises(InputError, match="needs the places of the query's tokens"):
        module.unpack(x[:1], kept)


def test_local_parts_are_for_self_attention():
    module = attention(**KINDS["local parts"])
    x, packed, _, _ = sentences([9], [3])
    with pytest.raises(InputError, match="the query has 7 tokens, the context 9"):
        module(x[:7], packed, x)
