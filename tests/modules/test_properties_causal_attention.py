"""What LunaCausalAttention must be, as a module: causal, blind to padding and batch, the same step by
step."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_luna import assert_close

from luna_fairseq.anchored.causal import DecayingCausalAttention
from luna_fairseq.errors import InputError
from luna_fairseq.modules import LunaCausalAttention

C, HEADS, L, B = 12, 3, 5, 4
PACKED_MASK = torch.arange(L)[None, :] >= torch.tensor([L, 2, L - 1, 1])[:, None]
variants = pytest.mark.parametrize(
    "options",
    [
        {},
        {"untie_kv": True},
        {"pack_activation": "elu"},
        {"untie_kv": True, "backend": "naive"},
        {"class": DecayingCausalAttention},
        {"class": DecayingCausalAttention, "untie_kv": True},
    ],
    ids=["tied", "untied", "elu", "untied naive", "decay", "decay untied"],
)
examples = settings(deadline=None, derandomize=True, max_examples=15)


def module_and_inputs(length, dtype=torch.float64, seed=0, **options):
    torch.manual_seed(seed)
    build = options.pop("class", LunaCausalAttention)
    module = build(C, HEADS, **options).eval().to(dtype)
    torch.nn.init.normal_(module.out_proj.bias)
    return module, torch.randn(length, B, C).to(dtype), torch.randn(L, B, C).to(dtype)


def in_calls(module, query, packed, sizes, state=None, key_padding_mask=None, packed_padding_mask=None):
    """Outputs and last state of steps with ``sizes`` positions each; P is given to the first alone."""
    outputs, start = [], 0
    for size in sizes:
        mask = None if key_padding_mask is None else key_padding_mask[:, start : start + size]
        output, state = module.step(query[start : start + size], packed, state, mask, packed_padding_mask)
        outputs.append(output)
        packed = None
        start += size
    return torch.cat(outputs), state


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
        output, _ = in_calls(module, query, packed, sizes, **masks)
    assert_close(output, expected, dtype)


@variants
def test_state_has_constant_size_and_an_integer_count(options):
    module, query, packed = module_and_inputs(9, torch.float16, **options)
    state, shapes = None, set()
    with torch.no_grad():
        for t in range(9):
            _, state = module.step(query[t : t + 1], packed, state)
            kept = {name: x for name, x in state._asdict().items() if x is not None}
            shapes.add(tuple((name, x.shape, x.dtype) for name, x in kept.items()))
            assert state.steps.tolist() == [t + 1] * B
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
    order = torch.tensor(order)
    with torch.no_grad():
        expected = module(query[:, order], packed[:, order], None, PACKED_MASK[order])
        _, state = in_calls(module, query[:4], packed, [1, 2, 1], None, None, PACKED_MASK)
        state = state.reorder(order).select(order)
        rest, _ = in_calls(module, query[4:, order], None, [1, 3, 1], state, None, PACKED_MASK[order])
    assert_close(rest, expected[4:])


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
@given(
    length=st.integers(1, 9),
    left=st.lists(st.integers(0, 6), min_size=B, max_size=B),
    extra=st.integers(0, 3),
)
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
    module, query, packed = module_and_inputs(8, untie_kv=True, **{"class": DecayingCausalAttention})
    module(query.requires_grad_(), packed.requires_grad_()).pow(2).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name
    assert query.grad.any() and packed.grad.any()


@pytest.mark.parametrize("incremental", [False, True])
def test_dropout_acts_in_training_alone(incremental):
    module, query, packed = module_and_inputs(30, dropout=0.4)

    def run():
        with torch.no_grad():
            return in_calls(module, query, packed, [30])[0] if incremental else module(query, packed)

    assert torch.equal(run(), run())
    module.train()
    torch.manual_seed(1)
    in_training = run()
    assert not torch.equal(in_training, run())
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


def test_a_first_step_needs_packed():
    module, query, _ = module_and_inputs(1)
    with pytest.raises(InputError, match="no packed sequence was given"):
        module.step(query)
