"""Compare all forms of look-up attention with the definition."""

import itertools
import warnings
from functools import partial

import pytest
import torch
from attention_inputs import output_and_gradients, relative_rms
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_inputs import LENGTHS, B, H, K, L, S, draw_inputs, masks
from torch.utils._python_dispatch import TorchDispatchMode

from luna_fairseq.anchored import chosen, pairs
from luna_fairseq.anchored import lookup as lookup_module
from luna_fairseq.anchored import segments as segments_module
from luna_fairseq.anchored.dense import Tokens, dense_attention, split_dense_weights
from luna_fairseq.anchored.diagonal import measure_diagonal, naive_diagonal_bias
from luna_fairseq.anchored.geometry import TargetPlaces
from luna_fairseq.anchored.lookup import (
    lookup_attention,
    mixed_lookup_attention,
    naive_lookup_attention,
    split_lookup_weights,
)
from luna_fairseq.anchored.places import find_centres
from luna_fairseq.anchored.segments import (
    Layout,
    arrange_places,
    arrange_tokens,
    find_layout,
    segment_of_tokens,
    token_positions,
)
from luna_fairseq.modules.batch import can_branch_on_values
from luna_fairseq.modules.memory import PackedMemory
from luna_fairseq.ops.attention import key_mask, naive_attention

T = 9
# torch 1.13 rounds the gradient of the gate, a sum over all tokens, more coarsely.
BFLOAT16 = 3e-2 if int(torch.__version__.split(".")[0]) > 1 else 5e-2
NAMES = ("output", "q", "k", "v", "token keys", "token values", "gate")
inputs = partial(draw_inputs, queries=T)


@pytest.fixture(
    params=["whole", "mixed", "mixed fetched", "graph", "fetched", "one by one", "large", 1, 3, 16]
)
def form(request, monkeypatch):
    """Select a form of look-up attention, by the thresholds that choose it.

    The parameter says which contexts are read whole ("whole", "mixed", "graph"), or how chosen tokens are
    read: "fetched" for each query, or in blocks of this size.
    """
    set_dense_length(
        monkeypatch, {"whole": S, "mixed": 7, "mixed fetched": 7, "graph": 7}.get(request.param, 0)
    )
    monkeypatch.setattr(segments_module, "MASKED_DENSE_LENGTH", 0)
    if request.param == "graph":
        monkeypatch.setattr(segments_module, "is_recording_graph", lambda *which: True)
    elif request.param in ("fetched", "mixed fetched"):
        monkeypatch.setattr(chosen, "make_pairs", lambda part, R: pairs.Gathered(part))
    elif request.param == "one by one":
        monkeypatch.setattr(pairs, "BLOCK", 2)
        monkeypatch.setattr(pairs, "IN_CACHE", 1)
    elif request.param == "large":
        monkeypatch.setattr(pairs, "LARGE_BLOCK", 5)
        monkeypatch.setattr(pairs, "LARGE_BLOCK_QUERIES", 0)
    elif isinstance(request.param, int):
        monkeypatch.setattr(pairs, "BLOCK", request.param)


def set_dense_length(monkeypatch, tokens):
    """Set the largest length at which all tokens of a context are read."""
    monkeypatch.setattr(segments_module, "DENSE_LENGTH", tokens)


with_every_form = pytest.mark.usefixtures("form")


def build_lookup(number, context, packed, diagonal=None, token_place=None, pack_weights=None):
    """Return a function from the inputs to the output of look-up attention.

    With ``pack_weights``, the function also returns the weights over the context.
    """

    def form(q, k, v, token_k, token_v, gate):
        complete = can_branch_on_values(context) and not (context.any() or packed.any())
        layout = find_layout(context, packed, number, complete=complete)
        position, how = layout.position, (gate, number, packed, 0.0)
        if position is None:
            tokens, bias = Tokens(token_k, token_v, layout.padding_mask, layout.segment), None
            if diagonal is not None:
                biases = [diagonal.bias(), diagonal.bias_at(token_place[:, None, None])]
                bias = torch.cat(biases, dim=-1)
            output, weights = dense_attention(q, k, v, tokens, *how, bias, pack_weights is not None)
            return (
                output
                if pack_weights is None
                else (
                    output,
                    split_dense_weights(weights, *pack_weights.shape[-2:]).total(
                        PackedMemory(None, None, pack_weights[:, 0])
                    ),
                )
            )
        parts = arrange_tokens(token_k, token_v, layout)
        if token_place is not None:
            parts = parts._replace(place=arrange_places(token_place, position))
        if pack_weights is None:
            return mixed_lookup_attention(q, k, v, parts, *how, diagonal)
        read = lookup_attention(q, k, v, parts, *how, diagonal)
        return read.output, split_lookup_weights(read, position, pack_weights.size(-1)).total(
            PackedMemory(None, None, pack_weights[:, 0])
        )

    return form


def build_definition(number, context, packed):
    return lambda *x: naive_lookup_attention(*x, number, context, packed)[0]


def check_with_diagonal(x, number, context, packed):
    """Compare look-up attention with a diagonal prior, and its gradients, with the definition."""
    row_place, token_place = find_centres(context, packed)
    query_place = torch.arange(x[0].size(2)).expand(len(context), -1)

    def form(*x):
        *rest, gamma, r = x
        diagonal = measure_diagonal(gamma, r, TargetPlaces(query_place), row_place, packed)
        return build_lookup(number, context, packed, diagonal, token_place)(*rest)

    def definition(*x):
        *rest, gamma, r = x
        biases = [naive_diagonal_bias(gamma, r, query_place, place) for place in (row_place, token_place)]
        return naive_lookup_attention(*rest, number, context, packed, 0.0, *biases)[0]

    x = [*x, torch.tensor([0.7, 2.0]).double(), torch.tensor([1.0, 0.8]).double()]
    expected = output_and_gradients(definition, x)
    for name, a, b in zip((*NAMES, "gamma", "ratio"), output_and_gradients(form, x), expected):
        assert relative_rms(a, b) < 1e-12, name


@pytest.mark.parametrize("queries, expected", [(9, "Blocks"), (1, "Gathered")])
def test_many_queries_are_computed_in_blocks(queries, expected):
    mask, rows = torch.zeros(1, 65, dtype=torch.bool), torch.zeros(1, 8, dtype=torch.bool)
    key = torch.zeros(1, 1, 65, 2)
    parts = arrange_tokens(key, key, Layout(*token_positions(mask, rows)))
    found = chosen.read_chosen(parts, torch.zeros(1, 1, queries, 8), None, 2)
    assert type(found.pairs).__name__ == expected


def test_blocks_of_the_example_in_the_docstring(monkeypatch):
    monkeypatch.setattr(pairs, "BLOCK", 2)
    blocks = pairs.sort_into_blocks(torch.tensor([[2, 0], [0, 1], [2, 0]]), 3)
    assert blocks.block_segment.tolist() == [0, 0, 1, 2, 2, 2]
    assert blocks.pair.tolist() == [1, 2, 5, 6, 3, 6, 0, 4, 6, 6, 6, 6]
    assert blocks.place.tolist() == [6, 0, 1, 4, 7, 2]


@settings(max_examples=40, deadline=None)
@given(chosen=st.lists(st.integers(0, 6), min_size=1, max_size=60))
def test_every_pair_is_in_a_block_of_its_segment(chosen):
    segment = torch.tensor(chosen)[:, None]
    blocks = pairs.sort_into_blocks(segment, 7)
    assert torch.equal(blocks.pair[blocks.place], torch.arange(len(chosen)))
    assert torch.equal(blocks.block_segment[blocks.place // pairs.BLOCK], segment.flatten())


@pytest.mark.parametrize("queries", [1, 100])
def test_only_the_inputs_are_saved_for_the_backward_pass(queries):
    part = torch.randint(7, (queries, 3))
    q, keys = torch.randn(queries, 5, requires_grad=True), torch.randn(7, 2, 5, requires_grad=True)
    weights = torch.randn(queries, 6, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        pairs.scores(pairs.make_pairs(part, 7), q, keys)
        pairs.weighted_sum(pairs.make_pairs(part, 7), weights, keys)
    numbers = [x.data_ptr() for x in kept if x.is_floating_point()]
    assert numbers == [x.data_ptr() for x in (q, keys, weights, keys)]


@pytest.mark.parametrize("lengths, short", [((64, 3), "all"), ((65, 64), "the second"), ((70, 65), "none")])
def test_contexts_of_at_most_64_tokens_are_read_whole(lengths, short):
    context, packed = right_padding(*lengths), torch.zeros(2, 8, dtype=torch.bool)
    layout = find_layout(context, packed, 8)
    assert layout.segment is None
    if short == "all":
        assert layout.position is None
        assert torch.equal(layout.padding_mask, torch.cat([packed, context], dim=1))
        assert find_layout(context, packed, 8, complete=True).padding_mask is None
    elif short == "none":
        assert layout.is_short is None or not layout.is_short.any()
    else:
        assert layout.is_short.tolist() == [False, True]
        assert layout.position[1][~layout.padding_mask[1]].tolist() == list(range(64))


@pytest.mark.parametrize(
    "longest, L, number, short, dense",
    [(256, 64, 4, 64, True), (257, 64, 4, 64, False), (256, 16, 4, 64, False), (256, 64, 4, 65, False)],
)
def test_a_masked_dense_layout_is_for_mixed_batches_of_few_tokens(longest, L, number, short, dense):
    layout = find_layout(right_padding(longest, short), torch.zeros(2, L, dtype=torch.bool), number)
    assert (layout.position is None) == dense == (layout.segment is not None)


@pytest.mark.parametrize("length, reads", [(64, 0), (65, 1), (256, 1), (257, 1)])
def test_a_layout_reads_the_lengths_of_the_contexts_at_most_once(length, reads, monkeypatch):
    """Reading values waits for a GPU."""
    checked = []

    def find_short(mask):
        checked.append(mask)
        return torch.zeros(len(mask), dtype=torch.bool)

    monkeypatch.setattr(segments_module, "is_short_context", find_short)
    find_layout(right_padding(length, length), torch.zeros(2, 64, dtype=torch.bool), 4)
    assert len(checked) == reads


def right_padding(*lengths):
    return torch.arange(max(lengths))[None, :] >= torch.tensor(lengths)[:, None]


def both_sides_padding(*lengths, before, after):
    """Return padding masks of contexts that are padded on both sides.

    Args:
        *lengths: number of tokens of each context.
        before: padding tokens before the longest context.
        after: padding tokens after every context.
    """
    S = before + max(lengths) + after
    position, n = torch.arange(S)[None, :], torch.tensor(lengths)[:, None]
    return (position >= S - after) | (position < S - after - n)


def random_inputs(context, L=16, T=3, dtype=torch.float64):
    """Return random inputs for contexts with this padding mask."""
    return draw_inputs(dtype, len(context), T, L, context.size(1))


MIXED = {
    "odd": right_padding(1, 63, 64, 65, 200),
    "both sides": both_sides_padding(65, 64, 1, 90, before=2, after=3),
    "little padding": both_sides_padding(64, 30, before=1, after=1),
    "an empty one": right_padding(100, 0, 64),
}


@pytest.mark.parametrize("layout", ["segments", "segments, apart", "as chosen", "graph"])
@pytest.mark.parametrize("kind", list(MIXED))
@pytest.mark.parametrize("number, L", [(1, 16), (4, 16), (4, 64), (20, 16)])
def test_batches_of_short_and_long_contexts_equal_the_definition(kind, number, L, layout, monkeypatch):
    context = MIXED[kind]
    if layout.startswith("segments"):
        monkeypatch.setattr(segments_module, "MASKED_DENSE_LENGTH", 0)
    monkeypatch.setattr(segments_module, "is_recording_graph", lambda *which: layout == "graph")
    monkeypatch.setattr(lookup_module, "can_branch_on_values", lambda x: layout == "segments, apart")
    packed = torch.arange(L)[None, :] >= (~context).sum(dim=1)[:, None].clamp(min=1)
    check_with_diagonal(random_inputs(context, L), number, context, packed)


@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float32, 5e-6), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)]
)
def test_short_and_long_contexts_in_other_precisions(dtype, tolerance):
    context, packed = MIXED["odd"], torch.zeros(5, 16, dtype=torch.bool)
    x = random_inputs(context, dtype=dtype)
    number = 2 if dtype == torch.float32 else 16  # with all segments, rounding cannot change the choice
    expected = output_and_gradients(build_definition(number, context, packed), [i.double() for i in x])
    for name, a, b in zip(NAMES, output_and_gradients(build_lookup(number, context, packed), x), expected):
        assert a.dtype == dtype
        assert relative_rms(a, b) < tolerance, name


class LargestTensor(TorchDispatchMode):
    """Count the elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(x, torch.Tensor) and x._base is None:
                storage = getattr(x, "untyped_storage", x.storage)()  # torch 1.13 has only ``storage``
                self.elements = max(self.elements, storage.nbytes() // x.element_size())
        return result


@pytest.mark.parametrize("number, L", [(4, 16), (4, 250)])
@pytest.mark.parametrize("beside", [900, 60, 1])
def test_a_short_context_does_not_make_long_contexts_quadratic(number, L, beside):
    context, packed = right_padding(1000, 900, beside), torch.zeros(3, L, dtype=torch.bool)
    x = [i.requires_grad_() for i in random_inputs(context, L, T=1000, dtype=torch.float32)]
    with LargestTensor() as largest:
        build_lookup(number, context, packed)(*x).sum().backward()
    keys = L + max(64, number * -(-1000 // L)) + K  # the weights of a query, and the width of a block
    assert largest.elements < 3 * H * 1000 * keys * 2 < 3 * H * 1000 * 1000


def test_queries_of_long_contexts_do_not_read_surplus_keys():
    """A mixed batch costs as many products as a batch of the long and a batch of the short contexts."""
    flop_counter = pytest.importorskip("torch.utils.flop_counter", reason="needs torch 2.1 or later")
    products = []
    for lengths in ((1000, 900), (60,), (1000, 60, 900)):
        context = right_padding(*lengths, 1000)[:-1]  # padded to 1,000 tokens
        x = random_inputs(context, 250, T=40, dtype=torch.float32)
        with flop_counter.FlopCounterMode(display=False) as counter:
            build_lookup(4, context, torch.zeros(len(lengths), 250, dtype=torch.bool))(*x)
        products.append(counter.get_total_flops())
    assert products[2] <= products[0] + products[1]


class LookUp(torch.nn.Module):
    def forward(self, q, k, v, token_k, token_v, gate, context):
        packed = torch.zeros(1, k.size(2), dtype=torch.bool)
        return build_lookup(2, context, packed)(q, k, v, token_k, token_v, gate)


def traced(example):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(LookUp(), example, check_trace=False)


def exported(example):
    auto = torch.export.Dim.AUTO
    shapes = [{}, {}, {}, {2: auto}, {2: auto}, {}, {1: auto}]
    return torch.export.export(LookUp(), example, dynamic_shapes=shapes, strict=False).module()


HAS_EXPORT = hasattr(getattr(torch, "compiler", None), "is_exporting")
needs_export = pytest.mark.skipif(not HAS_EXPORT, reason="needs torch 2.7 or newer")


@pytest.mark.parametrize("graph_of", [traced, pytest.param(exported, marks=needs_export)])
def test_a_graph_traced_with_11_tokens_is_correct_for_all_lengths(graph_of):
    example = torch.zeros(1, 11, dtype=torch.bool)
    graph = graph_of((*random_inputs(example), example))
    for n, padding in itertools.product((1, 11, 63, 64, 65, 200), (0, 70)):
        context = torch.arange(n + padding)[None, :] < padding
        x = random_inputs(context)
        expected = naive_lookup_attention(*x, 2, context, torch.zeros(1, 16, dtype=torch.bool))[0]
        assert torch.allclose(graph(*x, context), expected, atol=1e-12), (n, padding)


def test_a_short_context_is_read_whole_next_to_longer_contexts(monkeypatch):
    x, (context, packed) = inputs(), masks("right")
    together = build_lookup(2, context, packed)
    set_dense_length(monkeypatch, 7)
    output = together(*x)
    alone = build_lookup(2, context[1:, :7], packed[1:])
    shorter = [i if i.dim() == 1 else i[1:, :, :7] if i.size(2) == S else i[1:] for i in x]
    assert torch.allclose(output[1:], alone(*shorter), atol=1e-12)
    set_dense_length(monkeypatch, 0)
    assert torch.allclose(output[:1], together(*x)[:1], atol=1e-12)
    assert not torch.allclose(output[1:2], together(*x)[1:2], atol=1e-3)


@with_every_form
@pytest.mark.parametrize("kind", list(LENGTHS))
@pytest.mark.parametrize("number", [1, 2, L, L + 3])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 5e-6)])
def test_look_up_attention_equals_the_definition(kind, number, dtype, tolerance):
    x = inputs(dtype)
    expected = output_and_gradients(build_definition(number, *masks(kind)), [i.double() for i in x])
    actual = output_and_gradients(build_lookup(number, *masks(kind)), x)
    for name, a, b in zip(NAMES, actual, expected):
        assert a.dtype == dtype
        assert relative_rms(a, b) < tolerance, name


@with_every_form
@pytest.mark.parametrize("kind", list(LENGTHS))
def test_look_up_attention_with_a_diagonal_prior_equals_the_definition(kind):
    check_with_diagonal(inputs(), 2, *masks(kind))


@with_every_form
@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, BFLOAT16), (torch.float16, 4e-3)])
def test_half_precision(dtype, tolerance):
    x = inputs(dtype)
    everything = masks("right")  # all segments, so that rounding cannot change the choice
    expected = output_and_gradients(build_definition(L, *everything), [i.double() for i in x])
    actual = output_and_gradients(build_lookup(L, *everything), x)
    for name, a, b in zip(NAMES, actual, expected):
        assert a.dtype == dtype
        assert relative_rms(a, b) < tolerance, name


@with_every_form
def test_tied_keys_and_values_get_both_gradients():
    q, k, _, token_k, _, gate = inputs()

    def tied(of):
        form = of(2, *masks("right"))
        return lambda q, k, token_k, gate: form(q, k, k, token_k, token_k, gate)

    actual = output_and_gradients(tied(build_lookup), (q, k, token_k, gate))
    expected = output_and_gradients(tied(build_definition), (q, k, token_k, gate))
    for a, b in zip(actual, expected):
        assert relative_rms(a, b) < 1e-12


@with_every_form
def test_a_look_up_of_all_segments_is_softmax_attention_over_rows_and_tokens():
    q, k, v, token_k, token_v, gate = inputs()
    context, packed = masks("right")
    output = build_lookup(L, context, packed)(q, k, v, token_k, token_v, torch.zeros_like(gate))
    expected, _ = naive_attention(
        q, torch.cat([k, token_k], 2), torch.cat([v, token_v], 2), key_mask(torch.cat([packed, context], 1))
    )
    assert torch.allclose(output, expected, atol=1e-12)


@pytest.mark.parametrize("name", ["row_bias", "token_bias"])
def test_the_definition_applies_one_bias_without_the_other(name):
    context, packed = masks("right")
    biases = {"row_bias": torch.zeros(B, H, T, L), "token_bias": torch.zeros(B, H, T, S)}
    biases[name] = torch.randn(biases[name].shape).double()
    expected, *_ = naive_lookup_attention(*inputs(), 2, context, packed, **biases)
    output, *_ = naive_lookup_attention(*inputs(), 2, context, packed, **{name: biases[name]})
    assert torch.allclose(output, expected)


@with_every_form
def test_a_closed_gate_gives_plain_unpack_attention():
    q, k, v, token_k, token_v, gate = inputs()
    context, packed = masks("right")
    output = build_lookup(2, context, packed)(q, k, v, token_k, token_v, torch.full_like(gate, -1e4))
    assert torch.allclose(output, naive_attention(q, k, v, key_mask(packed))[0], atol=1e-12)


def test_weights_come_from_one_softmax_over_rows_and_chosen_segments(monkeypatch):
    set_dense_length(monkeypatch, 0)
    context, packed = masks("right")
    _, rows, tokens = naive_lookup_attention(*inputs(), 1, context, packed)
    assert torch.allclose(rows.sum(-1) + tokens.sum(-1), torch.ones(B, H, T, dtype=torch.float64))
    part = segment_of_tokens(context, packed)[:, None, None, :].expand_as(tokens)
    best = rows.argmax(dim=-1, keepdim=True)
    assert (tokens[part != best] == 0).all()


@with_every_form
@pytest.mark.parametrize("kind", ["whole", "right", "left"])
def test_weights_over_the_context_sum_both_ways_of_reading(kind):
    x, both = inputs(), masks(kind)
    pack_weights = torch.rand(B, 1, L, S, dtype=torch.float64)
    expected, rows, tokens = naive_lookup_attention(*x, 2, *both)
    output, weights = build_lookup(2, *both, pack_weights=pack_weights)(*x)
    assert torch.allclose(output, expected, atol=1e-12)
    assert torch.allclose(weights, rows @ pack_weights + tokens, atol=1e-12)


@with_every_form
def test_the_choice_of_a_query_does_not_depend_on_other_queries():
    x = inputs()
    form = build_lookup(2, *masks("right"))
    whole = form(*x)
    x[0] = torch.cat([x[0][:, :, :3], torch.randn(B, H, T - 3, K, dtype=torch.float64)], dim=2)
    assert torch.equal(form(*x)[:, :, :3], whole[:, :, :3])


@with_every_form
def test_padded_rows_leave_more_tokens_to_the_other_segments():
    x, (context, _) = inputs(), masks("right")
    packed = torch.arange(L)[None, :] >= torch.tensor([2, 1, 1])[:, None]
    expected = build_definition(2, context, packed)(*x)
    assert torch.allclose(build_lookup(2, context, packed)(*x), expected, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 50), rows=st.integers(1, 12), before=st.integers(0, 4), after=st.integers(0, 4))
def test_every_token_is_in_one_segment_and_segments_are_even(n, rows, before, after):
    position = torch.arange(before + n + after)[None, :]
    context = (position < before) | (position >= before + n)
    packed = torch.zeros(1, rows, dtype=torch.bool)
    where, empty = token_positions(context, packed)
    tokens = where[~empty]
    assert sorted(tokens.tolist()) == list(range(before, before + n))
    part = torch.arange(rows)[None, :, None].expand_as(where)[~empty]
    assert torch.equal(segment_of_tokens(context, packed)[0, tokens], part)
    sizes = (~empty[0]).sum(dim=1)
    assert sizes.max() - sizes.min() <= 1
