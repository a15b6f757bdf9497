"""Coverage of the source by rows of P: equal to values computed by hand, and independent of batching."""

import pytest
import torch
from tiny_luna import PAD, batch, example, tiny_model

from luna_fairseq.translation.pack_coverage import Coverage, learned_anchors, measure_coverage


def test_counts_by_hand():
    # One sentence with three tokens and one position of padding, two heads, and three rows of P. The last
    # row is masked.
    heads = [
        [[0.7, 0.2, 0.1, 0.0], [0.6, 0.3, 0.1, 0.0], [0.0, 0.0, 1.0, 0.0]],
        [[0.1, 0.8, 0.1, 0.0], [0.2, 0.3, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0]],
    ]
    coverage = Coverage()
    padding = torch.tensor([[False, False, False, True]])
    coverage.add(torch.tensor([heads]), padding, torch.tensor([[False, False, True]]))
    assert coverage.positions == 3
    assert coverage.covered_share == pytest.approx((1 + 2) / 2 / 3)
    assert coverage.mean_largest_weight == pytest.approx((0.7 + 0.8 + 0.5) / 3)
    # Without masks, every row and position counts. Sentences are added.
    coverage.add(torch.tensor([heads]), None, None)
    assert coverage.positions == 7
    assert coverage.covered_share == pytest.approx((1.5 + (2 + 3) / 2) / 7)
    assert coverage.mean_largest_weight == pytest.approx((2.0 + 1.0 + 0.8 + 1.0 + 0.0) / 7)


def net_input(source, target):
    source = batch(source, left=True)
    lengths = source.ne(PAD).sum(dim=1)
    return {"net_input": {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": batch(target)}}


def test_batches_do_not_matter():
    model, (source, target) = tiny_model(), example()
    together = measure_coverage(model, [net_input(source, target)])
    alone = measure_coverage(model, [net_input([s], [t]) for s, t in zip(source, target)])
    assert len(together) == len(alone) == 3
    for ours, theirs in zip(together, alone):
        assert ours.positions == theirs.positions == sum(map(len, source))
        assert 0 < ours.covered_share <= 1 and 0 < ours.mean_largest_weight <= 1
        assert ours.covered_share == pytest.approx(theirs.covered_share)
        assert ours.mean_largest_weight == pytest.approx(theirs.mean_largest_weight)
    assert not any(layer.encoder_attn._forward_hooks for layer in model.decoder.layers)


def test_anchored_attention_is_measured_with_its_places_and_says_how_strong_they_are():
    model, (source, target) = (
        tiny_model(anchored_packed=True, anchor_strength=60.0, packed_lookup=1),
        example(),
    )
    layers = measure_coverage(model, [net_input(source, target)])
    plain = measure_coverage(tiny_model(), [net_input(source, target)])
    assert all(a.mean_largest_weight > b.mean_largest_weight for a, b in zip(layers, plain))
    found = dict(learned_anchors(model))
    assert len(found["decoder.layers.0.encoder_attn.pack_anchor"]) == 4
    assert all(abs(x - 60) < 1 for x in found["encoder.layers.1.self_attn.pack_anchor"])
    assert len(found["decoder.layers.2.encoder_attn.lookup_gate"]) == 2
    assert learned_anchors(tiny_model()) == []
