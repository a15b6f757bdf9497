"""The weights over source tokens that the decoder returns, for alignments and to replace unknown words."""

from argparse import Namespace

import pytest
import torch
from tiny_luna import PAD, VARIANTS, Task, assert_close, batch, example, marked, tiny_model

from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
    LabelSmoothedCrossEntropyCriterionWithAlignment,
)
from luna_fairseq.modules.heads import split_heads
from luna_fairseq.ops.attention import key_mask, naive_attention


@pytest.mark.parametrize("variant", [marked(variant) for variant in VARIANTS])
@pytest.mark.parametrize("left", [False, True])
def test_alignment_is_a_distribution_over_real_source_tokens(variant, left):
    model = tiny_model(**VARIANTS[variant])
    source, target = example()
    source, target = batch(source, left), batch(target)
    with torch.no_grad():
        _, extra = model(source, None, target)
    (attn,) = extra["attn"]
    assert attn.shape == (*target.shape, source.size(1))
    assert not (attn * source.eq(PAD)[:, None, :]).any()
    assert (attn >= 0).all()
    assert_close(attn.sum(dim=-1), torch.ones(target.shape).double())


@pytest.mark.parametrize("variant", ["tied", "untied", "pre-norm"])
@pytest.mark.parametrize("layer, heads", [(None, None), (0, None), (1, 1)])
def test_alignment_by_hand(variant, layer, heads):
    """The alignment is the mean unpack weights of the (first) heads times the mean pack weights.

    It is computed in the last layer, or in ``alignment_layer`` if given.
    """
    model = tiny_model(**VARIANTS[variant])
    source, target = example()
    attention = model.decoder.layers[2 if layer is None else layer].encoder_attn
    seen = {}
    attention.watcher = lambda module, **call: seen.update(call)
    with torch.no_grad():
        out = model.encoder(batch(source))
        _, extra = model.decoder(batch(target), out, alignment_layer=layer, alignment_heads=heads)
        names = ("k", "v") if attention.untie_kv else ("kv", "kv")
        context_mask, packed_mask = out["encoder_padding_mask"][0], out["packed_padding_mask"][0]

        def attend(step, query, context, num_heads, mask):
            projections = [getattr(attention, f"{step}_{name}_proj") for name in ("q", *names)]
            tensors = [split_heads(p(x), num_heads) for p, x in zip(projections, (query, context, context))]
            return naive_attention(*tensors, key_mask(mask))

        packed_context, pack = attend("pack", seen["packed"], seen["context"], 4, context_mask)
        packed_context = packed_context.permute(2, 0, 1, 3).flatten(2)
        _, unpack = attend("unpack", seen["query"], packed_context, 2, packed_mask)
    expected = unpack[:, :heads].mean(dim=1) @ pack.mean(dim=1)
    assert_close(extra["attn"][0], expected)


def test_no_alignment_in_training_or_when_generation_does_not_want_it():
    source, target = example()
    model = tiny_model().train()
    assert model(batch(source), None, batch(target))[1]["attn"] is None
    model.eval()
    model.make_generation_fast_(need_attn=False)
    assert model(batch(source), None, batch(target))[1]["attn"] is None


@pytest.mark.parametrize("variant", ["tied", "look-up diagonal", "softmax cross"])
def test_alignments_train_the_attention(variant):
    """fairseq's criterion for alignments gives the attention a gradient, if the task loads alignments."""
    task = Task()
    task.cfg = Namespace(load_alignments=True)
    model = tiny_model(task=task, **VARIANTS[variant]).train()
    source, target = (batch(x) for x in example())
    sample = {"alignments": torch.tensor([[0, 0], [3, 9]]), "align_weights": torch.ones(2)}
    criterion = LabelSmoothedCrossEntropyCriterionWithAlignment(task, False, 0.1, 0.05)
    criterion.compute_alignment_loss(sample, model(source, None, target)).backward()
    attention = model.decoder.layers[-1].encoder_attn
    assert attention.unpack_q_proj.weight.grad.any()


def test_an_unpadded_batch_has_a_mask_that_changes_nothing():
    model = tiny_model()
    source, target = (batch(x) for x in example(source_lengths=(9, 9), target_lengths=(5, 8)))
    with torch.no_grad():
        out = model.encoder(source)
        (mask,) = out["encoder_padding_mask"]
        assert mask.shape == source.shape and not mask.any()
        (masks,) = out["source"]
        assert masks.padding_mask is None
        masked = {**out, "source": [masks._replace(padding_mask=mask)]}
        assert_close(model.decoder(target, masked)[0], model.decoder(target, out)[0])


def test_the_last_kept_layer_of_softmax_attention_to_the_source_packs_nothing():
    options = {"cross_attention": "softmax", "anchored_packed": True}
    state = tiny_model(**options).state_dict()
    pruned = tiny_model(**options, decoder_layers=2)
    pruned.load_state_dict(
        {name: x for name, x in state.items() if ".layers.2." not in name or "encoder." in name}
    )
