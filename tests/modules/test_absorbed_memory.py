"""Test that cached keys and values with absorbed projections give the outputs of plain keys and values."""

import pytest
import torch
from tiny_luna import assert_close

from luna_fairseq.errors import InputError
from luna_fairseq.modules import LunaAttention, LunaCausalAttention, Source
from luna_fairseq.modules.memory import PackedMemory, map_tensors
from luna_fairseq.ops.absorbed import AbsorbedMemory, multiply_by_head

C, H, L = 64, 2, 5


@pytest.fixture
def attention():
    torch.manual_seed(0)
    attention = LunaAttention(C, H, untie_kv=True).double().eval()
    torch.nn.init.normal_(attention.out_proj.bias)
    return attention


def inputs(B, n=1, T=1):
    return (torch.randn(*shape, C, dtype=torch.float64) for shape in ((T, B * n), (L, B), (9, B)))


@pytest.mark.parametrize("rows_of_p", [None, (5, 3), (2, 0)])
@pytest.mark.parametrize("B, n, T", [(1, 5, 1), (2, 3, 1), (2, 1, 1), (2, 3, 4)])
def test_an_absorbed_memory_gives_the_same_outputs(attention, B, n, T, rows_of_p):
    query, packed, context = inputs(B, n, T)
    mask = None if rows_of_p is None else torch.arange(L) >= torch.tensor(rows_of_p[:B])[:, None]
    source = Source(packed_padding_mask=mask)
    _, memory = attention.pack(packed, context, source)
    absorbed = attention.prepare(memory, source)
    assert isinstance(absorbed, AbsorbedMemory)
    expected, _ = attention.unpack(query, memory, source)
    assert_close(attention.unpack(query, absorbed, source)[0], expected)
    last = map_tensors(lambda x: x[B - 1 :], absorbed)
    assert_close(attention.unpack(query[:, -n:], last, source)[0], expected[:, -n:])


def test_a_large_memory_or_a_replaced_projection_is_not_absorbed(attention):
    def kind(B):
        _, packed, context = inputs(B)
        return type(attention.prepare(attention.pack(packed, context)[1], Source()))

    assert 2 * 3 * H * L <= C < 2 * 4 * H * L
    assert kind(3) is AbsorbedMemory and kind(4) is PackedMemory
    hook = attention.out_proj.register_forward_hook(lambda *call: None)
    assert kind(1) is PackedMemory
    hook.remove()
    attention.unpack_q_proj = torch.nn.Sequential(attention.unpack_q_proj)
    assert kind(1) is PackedMemory


def test_dropout_is_applied_to_the_weights(attention):
    attention.dropout_module.p = 1.0
    query, packed, context = inputs(1)
    memory = attention.prepare(attention.pack(packed, context)[1], Source())
    bias = attention.out_proj.bias.expand(1, 1, C)
    assert_close(attention.train().unpack(query, memory)[0], bias)


def test_an_absorbed_memory_gives_no_weights(attention):
    query, packed, context = inputs(1)
    memory = attention.prepare(attention.pack(packed, context)[1], Source())
    with pytest.raises(InputError, match="need_weights=True from the first decoding step on"):
        attention.unpack(query, memory, need_weights=True)


def test_a_memory_with_weights_is_not_absorbed(attention):
    query, packed, context = inputs(1)
    memory = attention.pack(packed, context, need_weights=True)[1]
    assert attention.prepare(memory, Source()) is memory


def test_the_masks_of_an_absorbed_memory_cannot_be_forgotten(attention):
    """The mask of P is part of an absorbed memory. Calls of unpack do not read a mask any more."""
    _, packed, context = inputs(1)
    with pytest.raises(TypeError, match="source"):
        attention.prepare(attention.pack(packed, context)[1])


@pytest.mark.parametrize("T", [3, 200])
def test_a_batch_may_be_empty(T):
    x, packed, mask = torch.randn(T, 0, C), torch.randn(L, 0, C), torch.zeros(0, T, dtype=torch.bool)
    output, packed_context, weights = LunaAttention(C, H)(x, packed, x, mask, need_weights=True)
    assert output.shape == (T, 0, C) and packed_context.shape == (L, 0, C) and weights.shape == (H, 0, T, T)
    causal = LunaCausalAttention(C, H)
    assert causal(x, causal.read(packed), key_padding_mask=mask)[0].shape == (T, 0, C)


@pytest.mark.parametrize("T", [1, 3])
def test_a_batch_may_be_empty_in_decoding(attention, T):
    query, packed, context = inputs(0, T=T)
    memory = attention.prepare(attention.pack(packed, context)[1], Source())
    assert isinstance(memory, AbsorbedMemory)
    assert attention.unpack(query, memory)[0].shape == (T, 0, C)
    causal = LunaCausalAttention(C, H).double()
    shared = causal.read(torch.randn(L, 1, C, dtype=torch.float64))
    assert causal(query, shared, keep_state=True)[0].shape == (T, 0, C)


def test_a_projection_of_each_head_of_an_empty_batch():
    assert multiply_by_head(torch.randn(0, H, L, 3), torch.randn(H, 3, C)).shape == (0, H, L, C)
