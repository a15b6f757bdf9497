"""What LunaCausalAttention must be, as a module: causal, blind to padding and batch, the same step by step."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_luna import assert_close

from luna_fairseq.errors import InputError
from luna_fairseq.modules import LunaCausalAttention

C, HEADS, L, B = 12, 3, 5, 4
PACKED_MASK = torch.arange(L)[None, :] >= torch.tensor([L, 2, L - 1, 1])[:, None]
variants = pytest.mark.parametrize(
    "options",
    [{}, {"untie_kv": True}, {"pack_activation": "elu"}, {"untie_kv": True, "backend": "naive"}],
    ids=["tied", "untied", "elu", "untied naive"],
)
examples = settings(deadline=None, derandomize=True, max_examples=15)


def module_and_inputs(length, dtype=torch.float64, seed=0, **options):
    torch.manual_seed(seed)
    module = LunaCausalAttention(C, HEADS, **options).eval().to(dtype)
    torch.nn.init.normal_(module.out_proj.bias)
    return module, torch.randn(length, B, C).to(dtype), torch.randn(L, B, C).to(dtype)


def in_calls(module, query, packed, sizes, state, key_padding_mask=None, packed_padding_mask=None):
    """Outputs of incremental calls with ``sizes`` positions each; P is given to the first call alone."""
    outputs, start = [], 0
    for size in sizes:
        mask = None if key_padding_mask is None else key_padding_mask[:, start : start + size]
        outputs.append(module(query[start : start + size], packed, mask, packed_padding_mask, state))
        packed = None
        start += size
    return torch.cat(outputs)


@variants
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@examples
@given(sizes=st.lists(st.sampled_from([1, 1, 2, 3, 150]), min_size=1, max_size=6), masked=st.booleans())
def test_any_division_into_calls_gives_the_same(options, dtype, sizes, masked):
    module, query, packed = module_and_inputs(sum(sizes), dtype, **options)
    masks = {"packed_padding_mask": PACKED_MASK} if masked else {}
    if masked:
        left = torch.tensor([0, 1, sum(sizes) // 2, 0])
        masks["key_padding_mask"] = torch.arange(sum(sizes))[None, :] < left[:, None]
    with torch.no_grad():
        expected = module(query, packed, **masks)
        output = in_calls(module, query, packed, sizes, {}, **masks)
    assert_close(output, expected, dtype)


@variants
def test_state_has_constant_size_and_an_integer_count(options):
    module, query, packed = module_and_inputs(9, torch.float16, **options)
    state, shapes = {}, set()
    with torch.no_grad():
        for t in range(9):
            in_calls(module, query[t : t + 1], packed, [1], state)
            saved = module.get_incremental_state(state, "causal_sums")
            shapes.add(tuple((name, value.shape, value.dtype) for name, value in saved.items()))
            assert saved["steps"].tolist() == [t + 1] * B
    (only,) = shapes
    K = C // HEADS
    expected = {
        "pack_q": ((B, HEADS, L, K), torch.float16),
        "key_sum": ((B, HEADS, K, L), torch.float32),
        "steps": ((B,), torch.int64),
    }
    if module.untie_kv:  # tied: the sum of values is that of keys
        expected["value_sum"] = ((B, HEADS, L, K), torch.float32)
    assert {name: (tuple(shape), dtype) for name, shape, dtype in only} == expected


@variants
@pytest.mark.parametrize("order", [[3, 0, 0, 1], [2], [1, 1, 3, 3, 0, 2, 2]])
def test_reordered_state_goes_on_as_the_reordered_sentences(options, order):
    module, query, packed = module_and_inputs(9, **options)
    order, state = torch.tensor(order), {}
    with torch.no_grad():
        expected = module(query[:, order], packed[:, order], None, PACKED_MASK[order])
        in_calls(module, query[:4], packed, [1, 2, 1], state, None, PACKED_MASK)
        module.reorder_incremental_state(state, order)
        module.keep_sentences(state, order)
        rest = in_calls(module, query[4:, order], None, [1, 3, 1], state, None, PACKED_MASK[order])
    assert_close(rest, expected[4:])


def test_reordering_before_the_first_step_is_harmless():
    module, _, _ = module_and_inputs(1)
    state = {}
    module.reorder_incremental_state(state, torch.tensor([0]))
    module.keep_sentences(state, torch.tensor([0]))
    assert state == {}


@variants
def test_causality(options):
    module, query, packed = module_and_inputs(8, **options)
    output = module(query.requires_grad_(), packed)
    other = torch.randn_like(query)
    for t in range(8):
        (gradient,) = torch.autograd.grad(output[t].sum(), query, retain_graph=True)
        assert not gradient[t + 1 :].any() and gradient[: t + 1].any(dim=-1).all()
        changed = torch.cat([query[: t + 1], other[t + 1 :]])
        assert torch.equal(module(changed, packed)[: t + 1], output[: t + 1])


@variants
@examples
@given(length=st.integers(1, 9), left=st.lists(st.integers(0, 6), min_size=B, max_size=B), extra=st.integers(0, 3))
def test_padding_and_batch_do_not_matter(options, length, left, extra):
    module, query, packed = module_and_inputs(length, **options)
    total = length + max(left) + extra
    padded, mask = torch.randn(total, B, C).double() * 9, torch.ones(B, total, dtype=torch.bool)
    for b in range(B):
        padded[left[b] : left[b] + length, b] = query[:, b]
        mask[b, left[b] : left[b] + length] = False
    with torch.no_grad():
        output = module(padded, packed, mask, PACKED_MASK)
        for b in range(B):
            alone = module(query[:, b : b + 1], packed[:, b : b + 1], None, PACKED_MASK[b : b + 1])
            assert_close(output[left[b] : left[b] + length, b : b + 1], alone)


def test_every_parameter_and_both_sequences_get_a_gradient():
    module, query, packed = module_and_inputs(8, untie_kv=True)
    module(query.requires_grad_(), packed.requires_grad_()).pow(2).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name
    assert query.grad.any() and packed.grad.any()


@pytest.mark.parametrize("incremental", [False, True])
def test_dropout_acts_in_training_and_where_it_is_retained(incremental):
    module, query, packed = module_and_inputs(30, dropout=0.4)

    def run():
        with torch.no_grad():
            return in_calls(module, query, packed, [30], {}) if incremental else module(query, packed)

    assert torch.equal(run(), run())
    module.train()
    torch.manual_seed(1)
    in_training = run()
    assert not torch.equal(in_training, run())
    module.eval()
    module.dropout_module.make_generation_fast_("", retain_dropout=True)
    torch.manual_seed(1)
    assert torch.equal(in_training, run())


@pytest.mark.parametrize(
    "args, message",
    [
        ({"num_heads": 5}, "embedding width 12 is not divisible by 5 attention heads"),
        ({"pack_activation": "relu"}, "unknown pack activation 'relu'; choose one of softplus, elu"),
        ({"backend": "fast"}, "unknown Luna backend 'fast'; choose one of"),
    ],
)
def test_what_cannot_be_is_refused(args, message):
    with pytest.raises(InputError, match=message):
        LunaCausalAttention(**{"embed_dim": C, "num_heads": HEADS, **args})
