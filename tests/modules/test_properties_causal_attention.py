"""What LunaCausalAttention must be, as a module: the same step by step, in a state of constant size. That it
is causal and blind to padding is tested of the op and of models."""

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
