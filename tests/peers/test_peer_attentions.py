"""Test properties of all peer attentions in every form and variant, with a reason for each exception."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peer_cases import C, H, assert_close, attention_name, build, cases, pad, sequence

from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from luna_fairseq.errors import InputError
from luna_fairseq.peers import ATTENTIONS
from luna_fairseq.peers.attention import OPTIONS, ROLES

each_self = pytest.mark.parametrize("name, form", cases("bidirectional", "causal"))
each_causal = pytest.mark.parametrize("name, form", cases("causal"))
each_cross = pytest.mark.parametrize("name, form", cases("cross"))
each = pytest.mark.parametrize("name, form", cases(*ROLES))

# Attentions whose decoding state grows with the number of decoded tokens, with the reason.
GROWING_STATE = {
    "softmax": "keys and values of every position are what it attends to",
    "sparse": "every position is strided to by a later one",
    "reformer": "any position may be in the bucket of a later one",
    "sinkhorn": "any block may be sorted to a later one",
    "synthesizer": "weights go to every position",
}
# Attentions whose memory grows faster than the length, with the reason.
FASTER_THAN_LINEAR = {
    "softmax": "weights, or their mask, for every pair of positions",
    "sparse": "every l-th position of all: n^2 / l weights",
    "synthesizer": "weights for every pair of positions",
    "sinkhorn": "a matrix between blocks, (n / b)^2, and a network with an output for each",
}
WITHOUT_WEIGHTS = ("linear", "performer", "rfa")


def self_attention(module, x, mask=None, **kwargs):
    return module(x, x, x, key_padding_mask=mask, **kwargs)[0]


def gradients(output, leaves):
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output)
    return torch.autograd.grad((output * weight).sum(), leaves, allow_unused=True)


@each_self
@pytest.mark.parametrize("length", [1, 2, 7, 13, 24])
@pytest.mark.parametrize("padded", [0, 4])
def test_the_fast_form_is_the_definition_with_all_gradients(name, form, length, padded):
    module = build(name, form)
    lengths = [length, max(1, length - padded)]
    x, mask = pad([sequence(n, 1, seed=n)[:, 0] for n in lengths])
    x.requires_grad_()
    leaves = [x, *module.parameters()]
    real = ~mask[:, None, :, None]
    results = []
    for function in (module.attend, module.attend_naively):
        output = function(*module.project(x), padding_mask=mask if padded else None) * real
        results.append((output, *gradients(output, leaves)))
    for a, b in zip(*results):
        if a is None or b is None:
            assert a is b
        else:
            assert_close(a, b, 1e-8)


@each_causal
def test_no_position_depends_on_a_later_one(name, form):
    module = build(name, form)
    x, y = sequence(17), sequence(17, seed=1)
    expected = self_attention(module, x)
    for t in (1, 5, 6, 12, 16):
        changed = torch.cat([x[:t], y[t:]])
        output = self_attention(module, changed)
        assert_close(output[:t], expected[:t], 1e-12)
        assert (output[t:] - expected[t:]).abs().max() > 1e-3
    earlier = torch.cat([y[:12], x[12:13]])
    assert (self_attention(module, earlier)[12] - expected[12]).abs().max() > 1e-6 or name == "local, blocks"


@settings(deadline=None, derandomize=True, max_examples=12)
@given(
    lengths=st.lists(st.integers(1, 15), min_size=1, max_size=4),
    data=st.data(),
    right=st.integers(0, 7),
)
@each_self
def test_a_sentence_has_the_same_output_alone_and_padded_on_either_side_among_others(
    name, form, lengths, data, right
):
    module = build(name, form)
    sentences = [sequence(n, 1, seed=n)[:, 0] for n in lengths]
    left = [data.draw(st.integers(0, 7)) for _ in lengths]
    x, mask = pad(sentences, left, right)
    together = self_attention(module, x, mask)
    for b, (n, sentence) in enumerate(zip(left, sentences)):
        alone = self_attention(module, sentence.unsqueeze(1))
        assert_close(together[n : n + len(sentence), b], alone[:, 0], 1e-9)


@each
def test_a_sentence_or_context_of_padding_alone_spoils_nothing(name, form):
    module = build(name, form)
    x, mask = pad([sequence(9, 1)[:, 0], sequence(5, 1)[:, 0]])
    mask[1] = True
    x.requires_grad_()
    output = self_attention(module, x, mask)
    assert output.isfinite().all()
    found = gradients(output[:, 0], [x, *module.parameters()])
    assert all(gradient is None or gradient.isfinite().all() for gradient in found)


@each_causal
@pytest.mark.parametrize("cuts", [(1,) * 14, (6, 1, 1, 1, 5)])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 2e-5)])
def test_step_by_step_equals_all_at_once_also_after_changing_places(name, form, cuts, dtype, tolerance):
    module = build(name, form, dtype)
    x, order = sequence(14, 3, dtype), torch.tensor([2, 0, 0, 1])
    expected = self_attention(module, x[:, order])
    state, outputs, start = {}, [], 0
    for size in cuts:
        part = x[start : start + size]
        outputs.append(self_attention(module, part if start < 7 else part[:, order], incremental_state=state))
        start += size
        if start == 7:
            module.reorder_incremental_state(state, order)
    for output, part in zip(outputs, expected.split(cuts)):
        assert_close(output, part[:, [1, 3, 0]] if output.size(1) == 3 else part, tolerance)


@each_causal
def test_step_by_step_takes_padding_on_either_side(name, form):
    module = build(name, form)
    x, mask = pad([sequence(n, 1, seed=n)[:, 0] for n in (8, 5, 3)], [0, 2, 5], 2)
    expected, state = self_attention(module, x, mask), {}
    for t in range(len(x)):
        step = mask[:, t : t + 1]
        output = self_attention(module, x[t : t + 1], step if step.any() else None, incremental_state=state)
        real = ~mask[:, t]
        if real.any():
            assert_close(output[0, real], expected[t, real])


@pytest.mark.parametrize("name, form", cases("bidirectional", "causal", "cross"))
def test_attention_whose_weights_are_all_dropped_reads_nothing(name, form):
    """Attentions without weights ignore dropout."""
    module, x = build(name, form, dropout=1.0), sequence(14)
    expected = module(x, x, x)[0]
    outputs = [module.train()(x, x, x)[0]]
    if form != "bidirectional":
        outputs.append(module(x[:1], x, x, incremental_state={})[0])
    if attention_name(name) in WITHOUT_WEIGHTS:
        assert_close(outputs[0], expected)
    else:
        assert all(output.eq(module.out_proj.bias).all() for output in outputs)
        assert not expected.eq(module.out_proj.bias).all()


@each_causal
def test_the_state_of_decoding_is_constant_or_excused(name, form):
    module, sizes = build(name, form), []
    x, state = sequence(40), {}
    for t in range(40):
        self_attention(module, x[t : t + 1], incremental_state=state)
        sizes.append(sum(part.numel() for saved in state.values() for part in saved.values()))
    assert (sizes[-1] > sizes[20]) == (name.split(",")[0] in GROWING_STATE)


def storage_of(tensor):
    return getattr(tensor, "untyped_storage", tensor.storage)()  # torch 1.13 has only ``storage``


@each_self
def test_memory_for_the_gradient_grows_with_the_length(name, form):
    if name.split(",")[0] in FASTER_THAN_LINEAR:
        pytest.skip(FASTER_THAN_LINEAR[name.split(",")[0]])
    saved = []
    for length in (192, 384):
        module, kept = build(name, form, torch.float32, max_positions=384), {}
        x = sequence(length, dtype=torch.float32).requires_grad_()
        _, mask = pad([x[:, 0], x[: length - 5, 1]])

        def keep(tensor, kept=kept):
            storage = storage_of(tensor)
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = self_attention(module, x, mask)
        parameters = {storage_of(p).data_ptr() for p in module.parameters()}
        saved.append(sum(size for place, size in kept.items() if place not in parameters))
        del output
    assert saved[1] < 2.1 * saved[0]


@each
def test_every_parameter_has_a_gradient(name, form):
    module = build(name, form).train()
    x = sequence(11)
    module(x, x, x)[0].pow(2).sum().backward()
    for what, parameter in module.named_parameters():
        assert parameter.grad is not None and (parameter.grad.abs().max() > 0 or what == "k_proj.bias"), what


@each
@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.1), (torch.float16, 0.02)])
def test_half_precision(name, form, dtype, tolerance):
    module = build(name, form, dtype)
    x, mask = pad([sequence(n, 1, dtype, seed=n)[:, 0] for n in (21, 14)], 2)
    x.requires_grad_()
    output = module(x, x, x, key_padding_mask=mask)[0]
    assert output.dtype == dtype and output.isfinite().all()
    assert all(g is None or g.isfinite().all() for g in gradients(output, [x, *module.parameters()]))
    if not name.startswith("reformer"):  # rounding changes the buckets
        exact = module.double()(x.double(), x.double(), x.double(), key_padding_mask=mask)[0]
        real = ~mask.t()
        error, size = (x[real].pow(2).mean().sqrt() for x in (output.double() - exact, exact))
        assert error < tolerance * size


@each
def test_zero_vectors_at_padding_spoil_nothing_in_float16(name, form):
    """Without biases, padding that is zero has queries, keys and values of zero."""
    module = build(name, form, torch.float16)
    for what, parameter in module.named_parameters():
        if what.endswith("bias"):
            parameter.data.zero_()
    x, mask = pad([sequence(n, 1, torch.float16, seed=n)[:, 0] for n in (21, 14)], 2, value=0.0)
    x.requires_grad_()
    output = module(x, x, x, key_padding_mask=mask)[0]
    found = gradients(output[~mask.t()], [x, *module.parameters()])
    assert output.isfinite().all() and all(g is None or g.isfinite().all() for g in found)


@each
def test_autocast(name, form):
    module, x = build(name, form, torch.float32), sequence(21, dtype=torch.float32).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = module(x, x, x)[0]
    assert output.isfinite().all()
    assert all(g is None or g.isfinite().all() for g in gradients(output, [x, *module.parameters()]))


@each_cross
@pytest.mark.parametrize("left", [0, 3])
def test_cross_attention_to_the_sequence_itself_is_bidirectional_attention(name, form, left):
    cross, within = build(name, "cross"), build(name, "bidirectional")
    within.alibi = False  # cross-attention has no ALiBi
    cross.diagonal = None  # self-attention has no diagonal prior
    within.load_state_dict(cross.state_dict())
    x, mask = pad([sequence(n, 1, seed=n)[:, 0] for n in (9, 6)], left)
    assert_close(cross(x, x, x, key_padding_mask=mask)[0], self_attention(within, x, mask))


@each_cross
def test_cross_attention_keeps_the_context_while_decoding(name, form):
    module, order = build(name, "cross"), torch.tensor([1, 1, 0])
    module.diagonal = None  # the decoder would have to set the numbers of the tokens
    x, (context, mask) = sequence(6), pad([sequence(n, 1, seed=n)[:, 0] for n in (9, 6)])
    expected, state = module(x, context, context, key_padding_mask=mask)[0], {}
    for t in range(3):
        output = module(x[t : t + 1], context, context, mask, incremental_state=state, static_kv=True)[0]
        assert_close(output[0], expected[t])
    module.reorder_incremental_state(state, order)
    output = module(x[3:, order], None, None, incremental_state=state, static_kv=True)[0]
    assert_close(output, expected[3:, order])


@each
def test_checkpointed_activations_change_nothing(name, form):
    x, results = sequence(13), []
    for wrap in (lambda module: module, checkpoint_wrapper):
        module = wrap(build(name, form, dropout=0.3).train())
        torch.manual_seed(5)
        inputs = x.clone().requires_grad_()
        output = module(inputs, inputs, inputs)[0]
        output.pow(2).sum().backward()
        results.append((output, inputs.grad, *(parameter.grad for parameter in module.parameters())))
    for a, b in zip(*results):
        assert_close(a, b)


LACKING = [(name, form, {}, f"{OPTIONS[form]} {name} is not possible, .* has no {form} form")
           for name in ATTENTIONS for form in ROLES if form not in ATTENTIONS[name].roles]  # fmt: skip
IMPOSSIBLE = [
    ("longformer", {"longformer_window": 5}, "--longformer-window to be even, got 5"),
    ("reformer", {"reformer_buckets": 5}, "--reformer-buckets to be even or 1, got 5"),
    ("softmax", {"heads": H + 2}, f"embedding width {C} is not divisible by {H + 2} attention heads"),
]


@pytest.mark.parametrize(
    "name, form, options, message",
    [*LACKING, *((name, "bidirectional", *more) for name, *more in IMPOSSIBLE)],
)
def test_what_cannot_be_is_refused_in_one_line(name, form, options, message):
    with pytest.raises(InputError, match=message) as refusal:
        build(name, form, **options)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["linformer", "synthesizer", "sinkhorn"])
def test_a_sequence_beyond_the_longest_is_refused(name):
    module = build(name, "bidirectional", max_positions=6)
    self_attention(module, sequence(6))
    with pytest.raises(InputError, match=f"Expected at most 6 tokens for {name} attention, got 7"):
        self_attention(module, sequence(7))
