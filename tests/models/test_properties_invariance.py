"""The translation model is causal, and independent of padding and of the other sentences of a batch."""

import pytest
import torch
from tiny_luna import PAD, VARIANTS, assert_close, batch, example, marked, tiny_model

variants = pytest.mark.parametrize("variant", [marked(variant) for variant in VARIANTS])


def logits_and_alignment(model, source, target):
    with torch.no_grad():
        logits, extra = model(source, None, target)
    return logits, extra["attn"][0]


def alone(model, source, target):
    """Return the logits and the alignment of each sentence in a batch of its own, without padding."""
    return [logits_and_alignment(model, torch.tensor([s]), torch.tensor([t])) for s, t in zip(source, target)]


def assert_same_at_real_positions(model, source, target, source_batch, target_batch):
    logits, alignment = logits_and_alignment(model, source_batch, target_batch)
    assert logits.shape == (*target_batch.shape, 19)
    assert alignment.shape == (*target_batch.shape, source_batch.size(1))
    for b, (expected, expected_alignment) in enumerate(alone(model, source, target)):
        real, source_real = target_batch[b].ne(PAD), source_batch[b].ne(PAD)
        assert_close(logits[b, real], expected[0])
        assert_close(alignment[b, real][:, source_real], expected_alignment[0])


@variants
@pytest.mark.parametrize("source_left", [False, True])
@pytest.mark.parametrize("target_left", [False, True])
def test_batch_and_padding_do_not_matter(variant, source_left, target_left):
    model = tiny_model(**VARIANTS[variant])
    source, target = example()
    for extra in (0, 3):
        batches = batch(source, source_left, extra), batch(target, target_left, extra)
        assert_same_at_real_positions(model, source, target, *batches)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_padding_may_exceed_the_positions(learned, left):
    """fairseq pads batches to a multiple of --required-seq-len-multiple."""
    positions = {"encoder_learned_pos": learned, "decoder_learned_pos": learned}
    model = tiny_model(max_source_positions=9, max_target_positions=8, **positions)
    source, target = example()
    batches = batch(source, left, extra=7), batch(target, left, extra=3)
    assert_same_at_real_positions(model, source, target, *batches)


def test_long_target_with_padding_in_several_chunks():
    model = tiny_model(max_target_positions=300)
    source, target = example((9, 3), (150, 201))
    for left in (False, True):
        assert_same_at_real_positions(model, source, target, batch(source, left), batch(target, left))


@pytest.mark.parametrize("fixed", [False, True])
def test_projection_length_follows_the_longest_source_unless_fixed(fixed):
    model = tiny_model(fix_projection_length=fixed)
    source, _ = example((4, 2, 3))
    out = model.encoder(batch(source, extra=5), return_all_hiddens=True)
    rows = 5 if fixed else 4
    assert all(packed.shape == (rows, 3, 12) for packed in (*out["packed_out"], *out["packed_states"]))
    if fixed:
        assert out["packed_padding_mask"] == []
    else:
        assert out["packed_padding_mask"][0].sum(dim=1).tolist() == [0, 2, 1]
    assert out["src_lengths"][0].tolist() == [[4], [2], [3]]


def test_fixed_and_dynamic_projection_length_differ_for_short_sources_only():
    models = [tiny_model(fix_projection_length=fixed) for fixed in (False, True)]
    for source_lengths, same in (((9, 5), True), ((4, 2), False)):
        source, target = example(source_lengths, (5, 7))
        results = [logits_and_alignment(model, batch(source), batch(target))[0] for model in models]
        difference = (results[0] - results[1]).abs().max()
        assert difference == 0 if same else difference > 1e-3


@variants
def test_logits_do_not_depend_on_later_tokens(variant):
    model = tiny_model(**VARIANTS[variant])
    source, target = example()
    source, target = batch(source), batch(target, left=True)
    logits, _ = logits_and_alignment(model, source, target)
    other = torch.randint(4, 19, target.shape, generator=torch.Generator().manual_seed(5))
    for t in range(target.size(1)):
        # From t on another continuation; a sentence's own padding stays where it is.
        changed = torch.cat([target[:, : t + 1], other[:, t + 1 :]], dim=1).masked_fill(target.eq(PAD), PAD)
        assert_close(logits_and_alignment(model, source, changed)[0][:, : t + 1], logits[:, : t + 1])


def test_padding_gets_no_gradient_from_real_positions():
    model = tiny_model(encoder_learned_pos=True, decoder_learned_pos=True)
    source, target = example()
    source, target = batch(source, left=True), batch(target, left=True)
    logits, _ = model(source, None, target)
    (logits * target.ne(PAD).unsqueeze(-1)).pow(2).sum().backward()
    for side in (model.encoder, model.decoder):
        for table in (side.embed_tokens.weight, side.embed_positions.weight):
            assert not table.grad[PAD].any() and table.grad.any()


def test_a_source_longer_than_the_positions_is_refused():
    model = tiny_model(max_source_positions=7)
    source, target = example((8,), (3,))
    with pytest.raises(ValueError, match="a source sentence has 8 tokens, the model's positions end at 7"):
        model(batch(source), None, batch(target))


def test_full_context_alignment_is_refused():
    model = tiny_model()
    source, target = example()
    with pytest.raises(NotImplementedError):
        model.decoder(batch(target), model.encoder(batch(source)), full_context_alignment=True)
