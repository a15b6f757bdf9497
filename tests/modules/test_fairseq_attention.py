"""The attentions inside fairseq: its dropout, quantisation noise and store for decoding, on the plain
modules."""

import pytest
import torch
from tiny_luna import assert_close

from luna_fairseq.errors import InputError
from luna_fairseq.modules import (
    FairseqLunaAttention,
    FairseqLunaCausalAttention,
    LunaAttention,
    LunaCausalAttention,
)

C, HEADS, L, B, S, T = 12, 3, 5, 4, 7, 6
PLAIN = {FairseqLunaAttention: LunaAttention, FairseqLunaCausalAttention: LunaCausalAttention}
both = pytest.mark.parametrize("kind", PLAIN)


def module_and_inputs(kind, **options):
    torch.manual_seed(0)
    module = kind(C, HEADS, **options).eval().double()
    inputs = [torch.randn(n, B, C).double() for n in (T, L, S)]
    return module, inputs if issubclass(kind, LunaAttention) else inputs[:2]


def first(result):
    return result[0] if isinstance(result, tuple) else result


@both
def test_the_same_random_numbers_parameters_and_results_as_the_plain_module(kind):
    options = {"dropout": 0.3, "untie_kv": True}
    (module, inputs), (plain, _) = (
        module_and_inputs(kind, **options),
        module_and_inputs(PLAIN[kind], **options),
    )
    ours, theirs = module.state_dict(), plain.state_dict()
    assert list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)
    outputs = []
    for each in (module, plain):
        torch.manual_seed(1)
        outputs.append(first(each.train()(*inputs)))
    assert torch.equal(*outputs)


@both
def test_state_is_kept_in_fairseqs_store_and_follows_the_hypotheses(kind):
    module, (query, packed, *context) = module_and_inputs(kind)
    order, state = torch.tensor([3, 0, 0, 1]), {}
    with torch.no_grad():
        expected = first(module(query[:, order], packed[:, order], *(x[:, order] for x in context)))
        start = first(module(query[:2], packed, *context, incremental_state=state))
        assert_close(start[:, order], expected[:2])
        if kind is FairseqLunaCausalAttention:
            module.reorder_incremental_state(state, order)
        module.keep_sentences(state, order)
        unread = [torch.full_like(x, torch.nan) for x in context]
        rest = module(query[2:, order], None, *unread, incremental_state=state)
    assert_close(first(rest), expected[2:])
    assert rest is first(rest) or rest[1] is None


@both
def test_reordering_before_the_first_step_is_harmless(kind):
    module, _ = module_and_inputs(kind)
    state = {}
    if kind is FairseqLunaCausalAttention:
        module.reorder_incremental_state(state, torch.tensor([0]))
    module.keep_sentences(state, torch.tensor([0]))
    assert state == {}


@both
def test_a_first_step_needs_packed(kind):
    module, (query, _, *context) = module_and_inputs(kind)
    with pytest.raises(InputError, match="no packed sequence was given"):
        module(query, None, *context, incremental_state={})


@both
@pytest.mark.parametrize("incremental", [False, True])
def test_dropout_is_retained_where_fairseq_says_so(kind, incremental):
    module, inputs = module_and_inputs(kind, dropout=0.4)

    def run():
        torch.manual_seed(1)
        with torch.no_grad():
            return first(module(*inputs, incremental_state={} if incremental else None))

    without = run()
    in_training = (module.train(), run())[1]
    assert not torch.equal(in_training, without)
    module.eval()
    name = PLAIN[kind].__name__
    module.dropout_module.make_generation_fast_("", retain_dropout=True, retain_dropout_modules=["Other"])
    assert torch.equal(run(), without)
    module.dropout_module.make_generation_fast_("", retain_dropout=True, retain_dropout_modules=[name])
    assert torch.equal(run(), in_training)


@both
def test_quantisation_noise_is_on_every_projection(kind):
    module, inputs = module_and_inputs(kind, q_noise=0.5, qn_block_size=4)
    before = {name: x.clone() for name, x in module.state_dict().items()}
    first(module.train()(*inputs))
    for name, x in module.state_dict().items():
        assert torch.equal(x, before[name]) == name.endswith("bias"), name
