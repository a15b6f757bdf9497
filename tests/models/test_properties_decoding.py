"""Step-by-step decoding equals one call for all positions, also after hypotheses are reordered."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_luna import PAD, VARIANTS, assert_close, batch, example, marked, tiny_model
from tiny_models import beam_search, kept_state, lprobs_of, tensors_of

from luna_fairseq.modules import LunaDecoder

LENGTHS = {"max_len_a": 0, "max_len_b": 15}
variants = pytest.mark.parametrize("variant", [marked(variant) for variant in VARIANTS])


def step_by_step(model, target, encoder_out, state, start=0, end=None):
    """Decode position by position, and return the logits [B, T, V] and alignments of T positions.

    At each step the decoder receives one more column of ``target``.
    """
    logits, alignments = [], []
    for t in range(start, end or target.size(1)):
        step_logits, extra = model.decoder(target[:, : t + 1], encoder_out, incremental_state=state)
        assert step_logits.size(1) == 1
        logits.append(step_logits)
        alignments.append(extra["attn"][0])
    return torch.cat(logits, dim=1), torch.cat(alignments, dim=1)


def inputs(target_lengths=(8, 8, 8, 8)):
    source, target = example(target_lengths=target_lengths)
    return batch(source, left=True), batch(target)


@variants
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_step_by_step_equals_all_at_once_with_a_state_of_constant_size(variant, dtype):
    model, state, sizes = tiny_model(dtype, **VARIANTS[variant]), {}, set()
    source, target = inputs((8, 3, 5, 7))  # shorter ones are padded on the right, as finished hypotheses are

    def counted(*_):
        kept = tensors_of(kept_state(state))
        sizes.add((len(kept), sum(x.numel() for x in kept)))

    with torch.no_grad():
        encoder_out = model.encoder(source)
        expected, extra = model.decoder(target, encoder_out)
        model.decoder.register_forward_hook(counted)
        logits, alignments = step_by_step(model, target, encoder_out, state)
    kept = kept_state(state)
    assert len(sizes) == 1 and [layer.steps for layer in kept.layers] == [None] * 3
    assert kept.count.dtype == torch.int64 and kept.count.tolist() == [8, 3, 5, 7]
    real = target.ne(PAD)
    assert_close(logits[real], expected[real], dtype)
    assert_close(alignments[real], extra["attn"][0][real], dtype)


@variants
def test_the_last_call_of_a_decoding_can_drop_the_state(variant):
    model = tiny_model(**VARIANTS[variant])
    source, target = inputs()
    with torch.no_grad():
        memory, _ = model.decoder.read_source(model.encoder(source))
        _, state = LunaDecoder.forward(model.decoder, target[:, :5], memory, keep_state=True)
        expected, _ = LunaDecoder.forward(model.decoder, target[:, 5:], memory, state)
        output, dropped = LunaDecoder.forward(model.decoder, target[:, 5:], memory, state, keep_state=False)
    assert dropped is None
    assert_close(output.x, expected.x)


@variants
@pytest.mark.parametrize(
    "order, return_all_hiddens", [([3, 0, 0, 2], True), ([1, 1], False), ([2, 1, 0, 3, 3, 0, 0], False)]
)
def test_reordered_decoding_goes_on_as_the_reordered_sentences(variant, order, return_all_hiddens):
    model = tiny_model(**VARIANTS[variant])
    source, target = inputs()
    order, state = torch.tensor(order), {}
    with torch.no_grad():
        expected, extra = model.decoder(target[order], model.encoder(source[order]))
        encoder_out = model.encoder(source, return_all_hiddens=return_all_hiddens)
        step_by_step(model, target, encoder_out, state, end=4)
        model.decoder.reorder_incremental_state_scripting(state, order)
        encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
        logits, alignments = step_by_step(model, target[order], encoder_out, state, start=4)
    assert_close(logits, expected[:, 4:])
    assert_close(alignments, extra["attn"][0][:, 4:])


@variants
@settings(deadline=None, derandomize=True, max_examples=3)
@given(data=st.data(), beam=st.integers(2, 3))
def test_hypotheses_of_a_sentence_share_what_belongs_to_its_source(variant, data, beam):
    """As in beam search, hypotheses are reordered within their sentence, and finished ones are removed."""
    model = tiny_model(**VARIANTS[variant])
    source, target = inputs()
    hypotheses = torch.randint(4, len(model.decoder.dictionary), (4 * beam, 8))
    hypotheses[:, 0] = target[0, 0]
    sentences, state = torch.arange(4), {}
    with torch.no_grad():
        encoder_out = model.encoder.reorder_encoder_out(
            model.encoder(source), sentences.repeat_interleave(beam)
        )
        for t in range(8):
            if t:
                kept = sorted(data.draw(st.sets(st.integers(0, len(sentences) - 1), min_size=1)))
                places = [[s * beam + data.draw(st.integers(0, beam - 1)) for _ in range(beam)] for s in kept]
                order = torch.tensor(places).flatten()
                model.decoder.reorder_incremental_state_scripting(state, order)
                encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
                hypotheses[: len(order), :t] = hypotheses[order, :t]
                hypotheses, sentences = hypotheses[: len(order)], sentences[kept]
            logits, alignments = step_by_step(model, hypotheses, encoder_out, state, t, t + 1)
            fresh = model.encoder(source[sentences.repeat_interleave(beam)])
            expected, extra = model.decoder(hypotheses[:, : t + 1], fresh)
            assert_close(logits, expected[:, -1:])
            assert_close(alignments, extra["attn"][0][:, -1:])
    (decoding,) = state.values()
    assert decoding.sentences.tolist() == [n for n in range(len(sentences)) for _ in range(beam)]
    assert {len(x) for x in tensors_of(decoding.state)} == {len(sentences) * beam}
    assert {len(x) for x in tensors_of(decoding.memory)} == {len(sentences)}


@variants
def test_reordered_encoder_output_is_read_as_that_of_the_reordered_sentences(variant):
    model = tiny_model(**VARIANTS[variant])
    source, target = inputs()
    with torch.no_grad():
        original = model.encoder(source)
        reordered = model.encoder.reorder_encoder_out(original, torch.tensor([3, 0, 3]))
        again = model.encoder.reorder_encoder_out(reordered, torch.tensor([2, 1, 1]))
        order = torch.tensor([3, 0, 0])
        expected, _ = model.decoder(target[order], model.encoder(source[order]))
        found, _ = model.decoder(target[order], again)
    assert original["sentences"] == [] and again["encoder_out"][0] is original["encoder_out"][0]
    assert_close(found, expected)


@variants
def test_p_of_every_layer_is_the_same_for_any_target(variant):
    """The decoder reads the source once: its memory is complete before there is a target."""
    model, packed = tiny_model(**VARIANTS[variant]), []
    decoder, source = model.decoder, batch(example()[0], left=True)
    for layer in decoder.layers:
        layer.self_attn.pack_q_proj.register_forward_pre_hook(lambda _, inputs: packed.append(inputs[0]))
    with torch.no_grad():
        for lengths in ((8, 3, 5, 7), (1, 1, 2, 1)):
            model(source, None, batch(example(target_lengths=lengths)[1]))
        first, second = packed[: len(decoder.layers)], packed[len(decoder.layers) :]
        assert len(first) == len(second)
        assert all(torch.equal(x, y) for x, y in zip(first, second))
        target = batch(example(target_lengths=(8, 3, 5, 7))[1])
        expected, _ = model(source, None, target)
        memory, _ = decoder.read_source(model.encoder(source))
        packed.clear()
        output, _ = LunaDecoder.forward(decoder, target, memory)
    assert not packed
    assert_close(decoder.output_layer(output.x), expected)


@variants
def test_beam_search_packs_every_sentence_once(variant):
    model = tiny_model(**VARIANTS[variant])
    source = batch(example()[0], left=True)
    rows = []
    packing = [name for name, _ in model.decoder.named_modules() if name.endswith(".pack_q_proj")]
    for name in packing:
        projection = model.decoder.get_submodule(name)
        projection.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].size(1)))
    beam_search(model, source, 3, min_len=9, **LENGTHS)
    # The learned P is the same for every sentence, so that it is projected once.
    once = {1} if model.decoder.cfg.non_contextual_packed else set()
    assert len(rows) == len(packing) and set(rows) <= {len(source), *once}
    assert len(packing) > len(model.decoder.layers)


@pytest.mark.parametrize("beam, variant", [(1, "tied"), *(marked(variant, 3) for variant in VARIANTS)])
def test_beam_search_in_a_batch_finds_what_it_finds_alone(beam, variant):
    model = tiny_model(**VARIANTS[variant])
    source, _ = example()
    for sentence, found in zip(source, beam_search(model, batch(source, left=True), beam, **LENGTHS)):
        (expected,) = beam_search(model, torch.tensor([sentence]), beam, **LENGTHS)
        assert [h["tokens"].tolist() for h in found] == [h["tokens"].tolist() for h in expected]
        for ours, theirs in zip(found, expected):
            assert float(ours["score"]) == pytest.approx(float(theirs["score"]), abs=1e-5)
            lprobs, _ = lprobs_of(model, ours["tokens"], torch.tensor([sentence]), None)
            assert float(ours["score"]) == pytest.approx(lprobs.mean().item(), abs=1e-5)


@pytest.mark.parametrize("variant", ["tied", "look-up diagonal", "softmax cross"])
def test_the_decoder_reads_a_changed_encoder_output(variant):
    """As in fairseq, entries of the encoder's dictionary may be changed before the decoder reads them."""
    model = tiny_model(**VARIANTS[variant])
    source, target = (batch(x) for x in example())
    with torch.no_grad():
        out = model.encoder(source)
        for name in ("encoder_out", "packed_out"):
            changed = {**out, name: [torch.randn_like(out[name][0])]}
            difference = model.decoder(target, changed)[0] - model.decoder(target, out)[0]
            assert difference.abs().amax() > 1e-3, name
        padded = {**out, "encoder_padding_mask": [source.ne(PAD).cumsum(dim=1) > 2]}
        assert (model.decoder(target, padded)[0] - model.decoder(target, out)[0]).abs().amax() > 1e-3
