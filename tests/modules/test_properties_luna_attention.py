"""What LunaAttention must be, as a module: the same with a packed context that is kept, with weights as by
hand, finite. That it is blind to padding and batch is tested of the op and of models."""

import pytest
import torch
from tiny_luna import assert_close

from luna_fairseq.errors import InputError
from luna_fairseq.modules import LunaAttention, Sentences

C, HEADS, PACK_HEADS, L, B, S, T = 12, 3, 2, 5, 4, 7, 6
PACKED_MASK = torch.arange(L)[None, :] >= torch.tensor([L, 2, L - 1, 1])[:, None]
CONTEXT_MASK = torch.arange(S)[None, :] >= torch.tensor([3, S, 1, S - 2])[:, None]
MASKS = {"context_padding_mask": CONTEXT_MASK, "packed_padding_mask": PACKED_MASK}
variants = pytest.mark.parametrize(
    "options",
    [{}, {"untie_kv": True}, {"num_pack_heads": None}],
    ids=["tied", "untied", "as many pack heads"],
)


def module_and_inputs(dtype=torch.float64, **options):
    torch.manual_seed(0)
    module = LunaAttention(C, HEADS, **{"num_pack_heads": PACK_HEADS, **options}).eval().to(dtype)
    torch.nn.init.normal_(module.out_proj.bias)
    return module, *(torch.randn(n, B, C).to(dtype) for n in (T, L, S))


@variants
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("sizes", [[1] * T, [2, 1, 3], [T]])
def test_packed_context_is_cached(options, dtype, need_weights, sizes):
    module, query, packed, context = module_and_inputs(dtype, **options)
    with torch.no_grad():
        expected, expected_packed, expected_weights = module(
            query, packed, context, **MASKS, need_weights=need_weights
        )
        given = Sentences(CONTEXT_MASK, PACKED_MASK)
        packed_context, pack_weights = module.pack(packed, context, given, need_weights)
        assert_close(packed_context, expected_packed, dtype)
        cache, outputs, weights, start = module.cache(packed_context, pack_weights), [], [], 0
        for size in sizes:
            output, w = module.unpack(query[start : start + size], cache, given, need_weights)
            outputs.append(output)
            weights.append(w)
            start += size
    assert_close(torch.cat(outputs), expected, dtype)
    if need_weights:
        assert_close(torch.cat(weights, dim=2), expected_weights, dtype)
    else:
        assert expected_weights is None


@variants
def test_weights_by_hand(options):
    """Unpack weights per head, times the pack heads' mean: a distribution over the real context positions."""
    module, query, packed, context = module_and_inputs(**options)
    with torch.no_grad():
        output, packed_context, weights = module(query, packed, context, **MASKS, need_weights=True)
        fused, fused_packed, _ = module(query, packed, context, **MASKS)
    assert_close(output, fused)
    assert_close(packed_context, fused_packed)
    assert weights.shape == (HEADS, B, T, S)
    assert not (weights * CONTEXT_MASK[None, :, None, :]).any()
    assert_close(weights.sum(dim=-1), torch.ones(HEADS, B, T).double())

    def softmax(q, k, heads, h, left_out):
        part = slice(h * C // heads, (h + 1) * C // heads)
        logits = q[:, part] @ k[:, part].t() / (C / heads) ** 0.5
        return logits.masked_fill(left_out, -torch.inf).softmax(dim=-1)

    k_of = {
        step: getattr(module, f"{step}_k{'' if module.untie_kv else 'v'}_proj") for step in ("pack", "unpack")
    }
    with torch.no_grad():
        for b in range(B):
            pack_q, pack_k = module.pack_q_proj(packed[:, b]), k_of["pack"](context[:, b])
            heads = module.num_pack_heads
            pack = sum(softmax(pack_q, pack_k, heads, h, CONTEXT_MASK[b]) for h in range(heads)) / heads
            unpack_q, unpack_k = module.unpack_q_proj(query[:, b]), k_of["unpack"](packed_context[:, b])
            for h in range(HEADS):
                unpack = softmax(unpack_q, unpack_k, HEADS, h, PACKED_MASK[b])
                assert_close(weights[h, b], unpack @ pack)


@pytest.mark.parametrize(
    "masks", [{"context_padding_mask": CONTEXT_MASK | True}, {"packed_padding_mask": PACKED_MASK | True}]
)
@pytest.mark.parametrize("need_weights", [False, True])
def test_nothing_left_to_attend_to_gives_finite_results(masks, need_weights):
    module, *inputs = module_and_inputs()
    inputs = [x.requires_grad_() for x in inputs]
    output, packed_context, _ = module(*inputs, **masks, need_weights=need_weights)
    (output.sum() + packed_context.sum()).backward()
    if "packed_padding_mask" in masks:
        assert_close(output, module.out_proj.bias.expand(T, B, C))
    for x in (output, packed_context, *(x.grad for x in inputs if x.grad is not None)):
        assert x.isfinite().all()
    for name, parameter in module.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match="embedding width 12 is not divisible by 5 attention heads"):
        LunaAttention(C, 5)
    with pytest.raises(
        InputError, match="embedding width 12 is not divisible by 5 projected attention heads"
    ):
        LunaAttention(C, 3, 5)
    module, query, packed, context = module_and_inputs()
    cache = module.cache(module.pack(packed, context)[0])
    with pytest.raises(InputError, match="after a first step without them"):
        module.unpack(query, cache, need_weights=True)
