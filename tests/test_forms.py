"""Force every form of every operation on the same inputs: the form is taken, and the results are the same."""

import time

import pytest
import torch

from luna_fairseq.anchored import segments as segments_module
from luna_fairseq.anchored.attention import AnchoredCrossAttention
from luna_fairseq.anchored.causal import DecayingCausalAttention
from luna_fairseq.benchmark.forms import CHOICES, FORM_TABLES, force_forms
from luna_fairseq.modules import LunaAttention, LunaCausalAttention, Source
from luna_fairseq.ops.attention import softmax_attention

B, C, H, L, S, T = 3, 48, 2, 5, 43, 37
TRITON = "causal=triton"
PROJECTED = ("pack=projected", "unpack=projected")
# Forms of other operations that lead to an operation or make its form possible.
WITH = {"softmax": PROJECTED, "look-up=dense": ("layout=numbered",), "look-up=prepared": ("layout=whole",)}
WITH.update(dict.fromkeys(["look-up=split", "look-up=segments", "pairs"], ("layout=segments",)))


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def masks():
    """Return masks of the context and of P; the last example is short if DENSE_LENGTH is 12."""
    context = torch.arange(S) >= torch.tensor([S, S - 4, 9])[:, None]
    return Source(context, torch.arange(L) >= torch.tensor([L, L, 3])[:, None])


def attend(attention):
    """Return the outputs of cross-attention, whole and step by step, and their gradients."""
    query, packed, context = (random(n, B, C).requires_grad_() for n in (T, L, S))
    source = masks()
    geometry = attention.find_geometry(query, packed, context, source)
    output, packed_context, _ = attention(query, packed, context, source=source, geometry=geometry)
    _, memory = attention.pack(packed, context, source, geometry)
    prepared = attention.prepare(memory, source)
    steps, _ = attention.unpack(query, prepared, source, geometry)
    return with_gradients(attention, [query, packed, context], [output, packed_context, steps])


def attend_causally(attention):
    """Return the outputs of causal attention, whole and token by token, and their gradients."""
    query, packed = random(T, B, C).requires_grad_(), random(L, B, C).requires_grad_()
    mask = torch.arange(T) < torch.tensor([0, 2, 0])[:, None]
    memory = attention.read(packed)
    whole, _ = attention(query, memory, key_padding_mask=mask)
    whole = whole.masked_fill(mask.t().unsqueeze(-1), 0.0)
    outputs, state = [], None
    for t in range(5):
        output, state = attention(query[t : t + 1], memory, state, keep_state=True)
        outputs.append(output)
    prefix, _ = attention(query[:5], memory, keep_state=True)
    return with_gradients(attention, [query, packed], [whole, torch.cat(outputs), prefix])


def with_gradients(module, inputs, outputs):
    loss = sum((x * random(*x.shape)).sum() for x in outputs)
    leaves = [*inputs, *module.parameters()]
    return [*outputs, *torch.autograd.grad(loss, leaves)]


CROSS = {
    "tied": lambda: LunaAttention(C, H),
    "untied": lambda: LunaAttention(C, H, num_pack_heads=4, untie_kv=True),
}
LOOK_UP = {"look-up": lambda: AnchoredCrossAttention(C, H, lookup=2, diagonal=True)}
CAUSAL = {
    "tied": lambda: LunaCausalAttention(C, H),
    "untied": lambda: LunaCausalAttention(C, H, untie_kv=True),
    "decay": lambda: DecayingCausalAttention(C, H),
}
CASES = {
    **{name: (CROSS, attend) for name in ("softmax", "pack", "unpack")},
    **{name: (CAUSAL, attend_causally) for name in ("causal", "pack-weights", "step")},
    **{name: (LOOK_UP, attend) for name in ("layout", "look-up", "pairs")},
}


def run(build, call):
    torch.manual_seed(0)
    return call(build().double().eval())


@pytest.mark.parametrize("form", CHOICES)
def test_every_form_is_taken_and_gives_the_same_results(form, monkeypatch):
    operation, name = form.split("=")
    if form == TRITON or operation in ("linear", "int8"):
        pytest.skip("it has tests of its own, and computes no float64")
    if operation in ("layout", "look-up", "pairs"):
        length = S if name in ("whole", "prepared") else 12
        monkeypatch.setattr(segments_module, "DENSE_LENGTH", length)
    modules, call = CASES[operation]
    for build in modules.values():
        with force_forms(WITH.get(form) or WITH.get(operation, ())):
            expected = run(build, call)
            with force_forms([form]) as taken:
                found = run(build, call)
        assert name in taken[operation]
        if form not in ("step=recurrent", "unpack=prepared"):  # whole sequences have other forms
            assert set(taken[operation]) <= {name, "projected", "dense", "whole"}
        # The gradient of a bias of keys is zero up to rounding: errors are relative to the largest value.
        largest = max(x.detach().abs().max() for x in expected)
        for one, other in zip(found, expected):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10 * float(largest))


def test_forms_are_taken_by_the_rule_if_none_is_forced():
    query, packed, context = random(T, B, C), random(L, B, C), random(S, B, C)
    with force_forms(["pack=projected"]), FORM_TABLES["pack"].force(None) as taken:
        LunaAttention(C, H).double()(query, packed, context)
    assert taken == ["absorbed"]
    with FORM_TABLES["pack"].force(None) as taken:
        LunaAttention(C, H).double()(query, packed, context[:3])
    assert taken == ["projected"]


def test_a_form_that_is_not_possible_is_not_taken():
    attention = LunaAttention(C, H).double()
    attention.pack_kv_proj.register_forward_hook(lambda *call: None)
    with FORM_TABLES["pack"].force("absorbed") as taken:
        attention(random(T, B, C), random(L, B, C), random(S, B, C))
    assert taken == ["projected"]


def test_a_form_can_be_named_by_an_argument():
    q, k, v = random(2, 3, 7, 4), random(2, 3, 9, 4), random(2, 3, 9, 4)
    expected = softmax_attention(q, k, v)
    for form in FORM_TABLES["softmax"].forms:
        torch.testing.assert_close(softmax_attention(q, k, v, form=form.name), expected)
    with pytest.raises(ValueError, match="matmul, fused, naive.*'fast'"):
        softmax_attention(q, k, v, form="fast")


def test_no_rule_reads_a_clock(monkeypatch):
    def fail():
        raise AssertionError("a clock was read")

    for clock in ("time", "perf_counter", "monotonic", "process_time", "thread_time"):
        monkeypatch.setattr(time, clock, fail)
    for modules, call in CASES.values():
        for build in modules.values():
            run(build, call)


@pytest.mark.parametrize("table", FORM_TABLES.values(), ids=FORM_TABLES)
def test_the_forms_of_a_table_have_names_and_descriptions(table):
    names = [form.name for form in table.forms]
    assert len(set(names)) == len(names) >= 2
    assert all(form.condition and form.saves for form in table.forms)
