"""Absorbed projections give the same results as projected tokens, and are used only if they are faster."""

import pytest
import torch
from attention_inputs import packed_mask, padding_mask
from torch import nn

from luna_fairseq.anchored.attention import AnchoredCrossAttention, AnchoredSelfAttention
from luna_fairseq.anchored.causal import DecayingCausalAttention
from luna_fairseq.anchored.softmax_cross import SoftmaxCrossAttention
from luna_fairseq.benchmark.forms import force_forms
from luna_fairseq.modules import LunaAttention, LunaCausalAttention, Source
from luna_fairseq.ops.absorbed import should_absorb

# Batch, heads, head width, packed length and lengths of queries and context: no two alike.
B, H, K, L, T, S = 3, 2, 5, 7, 13, 11
C = H * K
MASKS = {
    "none": (None, None),
    "context": (padding_mask(S, left=(0, 3, 0), right=(4, 0, S)), None),
    "rows": (None, packed_mask()),
    "both": (padding_mask(S, left=(0, 3, 0), right=(4, 0, 2)), packed_mask()),
}
masks = pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
ABSORBED, PROJECTED = (
    [f"{operation}={form}" for operation in ("pack", "unpack", "pack-weights")]
    for form in ("absorbed", "projected")
)
precisions = pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 5e-6)])
dropouts = pytest.mark.parametrize("dropout", [0.0, 0.3])
CROSS = {
    "tied": (LunaAttention, {}),
    "untied": (LunaAttention, {"untie_kv": True}),
    "other pack heads": (LunaAttention, {"num_pack_heads": 5}),
    "diagonal": (AnchoredCrossAttention, {"diagonal": True}),
    "look-up": (AnchoredCrossAttention, {"diagonal": True, "lookup": 2}),
    "softmax": (SoftmaxCrossAttention, {"anchor_strength": 4.0, "diagonal": True}),
}
SELF = {
    "tied": (LunaAttention, {}),
    "anchored": (AnchoredSelfAttention, {}),
    "window": (AnchoredSelfAttention, {"window": 3}),
}
CAUSAL = {
    "tied": (LunaCausalAttention, {}),
    "untied, elu": (LunaCausalAttention, {"untie_kv": True, "pack_activation": "elu"}),
    "decay": (DecayingCausalAttention, {}),
}


def build(choice, dropout, dtype):
    torch.manual_seed(0)
    kind, options = choice
    return kind(C, H, dropout=dropout, **options).to(dtype)


def random(*lengths, dtype):
    generator = torch.Generator().manual_seed(1)
    drawn = (torch.randn(n, B, C, generator=generator, dtype=torch.float64) for n in lengths)
    return [x.to(dtype).requires_grad_() for x in drawn]


def call(module, inputs, packed_padding_mask=None, **options):
    """Return the outputs of attention to a context, or of causal attention, whose inputs are X and P."""
    if not isinstance(module, LunaCausalAttention):
        return module(*inputs, **options)
    x, packed = inputs
    return module(x, module.read(packed, packed_padding_mask), **options)


def run(is_absorbed, module, inputs, **options):
    """Call an attention module with or without absorbed projections.

    Returns:
        The outputs, then the gradients of all inputs and parameters.
    """
    torch.manual_seed(2)
    with force_forms(ABSORBED if is_absorbed else PROJECTED):
        outputs = call(module, inputs, **options)
    outputs = [x for x in outputs[:2] if x is not None]
    generator = torch.Generator().manual_seed(3)
    loss = sum((x * torch.randn(x.shape, generator=generator, dtype=x.dtype)).sum() for x in outputs)
    leaves = list(dict.fromkeys([*inputs, *module.parameters()]))
    return [*outputs, *torch.autograd.grad(loss, leaves)]


def compare(module, inputs, tolerance, **options):
    expected, found = (run(kind, module, inputs, **options) for kind in (False, True))
    # The gradient of a bias of keys is zero up to rounding, so errors are relative to the largest gradient.
    largest = max(x.detach().abs().max() for x in expected)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=float(tolerance * largest))


@precisions
@dropouts
@masks
@pytest.mark.parametrize("choice", CROSS.values(), ids=CROSS)
def test_cross_attention_equals_projected_tokens(choice, masks, dropout, dtype, tolerance):
    """With the same seed, both computations also draw the same dropout masks."""
    inputs = random(T, L, S, dtype=dtype)
    compare(build(choice, dropout, dtype), inputs, tolerance, source=Source(*masks))


@precisions
@dropouts
@masks
@pytest.mark.parametrize("choice", SELF.values(), ids=SELF)
def test_self_attention_equals_projected_tokens(choice, masks, dropout, dtype, tolerance):
    packed, x = random(L, S, dtype=dtype)
    compare(build(choice, dropout, dtype), (x, packed, x), tolerance, source=Source(*masks))


@precisions
@dropouts
@masks
@pytest.mark.parametrize("choice", CAUSAL.values(), ids=CAUSAL)
def test_causal_attention_equals_projected_tokens(choice, masks, dropout, dtype, tolerance):
    inputs = random(S, L, dtype=dtype)
    paddings = dict(zip(("key_padding_mask", "packed_padding_mask"), masks))
    compare(build(choice, dropout, dtype), inputs, tolerance, **paddings)


def count_saved_bytes(module, inputs):
    """Return the number of bytes that one call saves for its backward pass, without parameters."""
    found, parameters = {}, {x.untyped_storage().data_ptr() for x in module.parameters()}

    def keep(x):
        found[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        _ = call(module, inputs)  # alive while tensors are kept, so that no address is used again
    return sum(size for pointer, size in found.items() if pointer not in parameters)


@pytest.mark.skipif(not hasattr(torch.Tensor, "untyped_storage"), reason="needs torch 2.0")
@pytest.mark.parametrize("kind", [LunaAttention, LunaCausalAttention])
@pytest.mark.parametrize("untie_kv", [False, True])
def test_absorbed_projections_need_no_more_memory(kind, untie_kv):
    """The comparison uses the shortest sequence for which projections are absorbed."""
    module = kind(64, 2, dropout=0.1, untie_kv=untie_kv)
    length = 2 * 2 * 5
    x, packed = torch.randn(length, 3, 64, requires_grad=True), torch.randn(5, 3, 64)
    inputs = (x, packed) if kind is LunaCausalAttention else (x, packed, x)
    kept = []
    for forms in ((), PROJECTED):
        with force_forms(forms):
            kept.append(count_saved_bytes(module, inputs))
    assert kept[0] < kept[1]


def test_projections_are_absorbed_only_where_this_saves_time():
    linear, rows, tokens = nn.Linear(64, 64), torch.randn(3, 2, 5, 32), torch.randn(40, 3, 64)
    assert should_absorb(rows, tokens, [linear])
    assert not should_absorb(rows, tokens[:19], [linear])  # fewer than two tokens for each row of each head
    assert should_absorb(rows, tokens[:19], [linear, linear])
    assert should_absorb(rows, tokens[:19], [linear], products=1)
    many_rows = torch.randn(3, 2, 13, 32)  # for K = 32
    assert not should_absorb(many_rows, tokens.repeat(9, 1, 1), [linear])
    assert not should_absorb(rows.bfloat16(), tokens, [linear])  # under autocast
    assert not should_absorb(rows.to("meta"), tokens.to("meta"), [linear])


def test_a_layer_with_hooks_or_of_another_kind_is_not_absorbed():
    class Other(nn.Linear):
        """Layer that may do anything with its weight."""

    rows, tokens = torch.randn(3, 2, 5, 32), torch.randn(40, 3, 64)
    hooked, watched = nn.Linear(64, 64), nn.Linear(64, 64)
    hooked.register_forward_pre_hook(lambda module, inputs: None)
    watched.register_forward_hook(lambda module, inputs, output: None)
    for linear in (hooked, watched, Other(64, 64), nn.Linear(64, 64, bias=False)):
        assert not should_absorb(rows, tokens, [linear])
