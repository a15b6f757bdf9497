"""Test that the attentions reject bad arguments."""

import pytest
import torch

from luna_fairseq.errors import InputError
from luna_fairseq.modules import LunaAttention, LunaCausalAttention


@pytest.mark.parametrize(
    "build, args, message",
    [
        (LunaAttention, (12, 5), "embedding width 12 is not divisible by 5 attention heads"),
        (LunaAttention, (12, 3, 5), "embedding width 12 is not divisible by 5 projected attention heads"),
        (LunaCausalAttention, (12, 5), "embedding width 12 is not divisible by 5 attention heads"),
    ],
)
def test_a_width_that_the_heads_do_not_divide_is_rejected(build, args, message):
    with pytest.raises(InputError, match=message):
        build(*args)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"pack_activation": "relu"}, "unknown pack activation 'relu'; choose one of softplus, elu"),
        ({"backend": "fast"}, "unknown Luna backend 'fast'; choose one of"),
    ],
)
def test_unknown_names_are_rejected(options, message):
    with pytest.raises(InputError, match=message):
        LunaCausalAttention(12, 3, **options)


def test_calls_out_of_order_are_rejected():
    x, packed = torch.randn(7, 4, 12), torch.randn(5, 4, 12)
    with pytest.raises(InputError, match="no packed sequence was passed"):
        LunaCausalAttention(12, 3).step(x[:1])
    attention = LunaCausalAttention(12, 3)
    _, state = attention.step(x[:1], packed)
    with pytest.raises(InputError, match="has no token counts"):
        attention.step(x[:1], state=state._replace(steps=None))
    module = LunaAttention(12, 3)
    _, memory = module.pack(packed, x)
    with pytest.raises(InputError, match="got a memory without weights"):
        module.unpack(x, memory, need_weights=True)
