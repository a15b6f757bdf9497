"""A causal language model gives the same logits for a text in segments and for the text at once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_luna import PAD, batch, sentences
from tiny_models import LM_VARIANTS as VARIANTS
from tiny_models import language_model as tiny_model
from tiny_models import tensors_of

from luna_fairseq.errors import InputError
from luna_fairseq.models.int8 import quantise
from luna_fairseq.models.stream import Stream


def assert_near(actual, expected, atol=2e-5):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


variants = st.sampled_from(list(VARIANTS))
cuts = st.lists(st.integers(1, 7), min_size=1, max_size=4)


def text(length, rows=2):
    return batch(sentences((length,) * rows, 23))


@settings(max_examples=15, deadline=None)
@given(cut=cuts, variant=variants)
def test_any_cutting_gives_what_reading_at_once_gives(cut, variant):
    model, tokens, stream = tiny_model(**VARIANTS[variant]), text(sum(cut)), Stream()
    with torch.no_grad():
        expected, _ = model(tokens)
        read = torch.cat([model(part, stream=stream)[0] for part in tokens.split(cut, dim=1)], dim=1)
    assert_near(read, expected)  # fairseq's table of positions is float32
    assert stream.position == sum(cut)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_a_window_that_is_read_again_has_the_gradient_of_the_whole(variant):
    model, tokens = tiny_model(**VARIANTS[variant]), text(12)
    weight = torch.randn(2, 12, 23, dtype=torch.float64)
    weight[:, :8] = 0  # the last segment's loss alone

    def gradient(loss):
        model.zero_grad()
        loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    whole = gradient((model(tokens)[0] * weight).sum())
    stream = Stream()
    windows = gradient((model(tokens, stream=stream, keep_after=4)[0] * weight).sum())
    for one, other in zip(whole, windows):
        assert_near(one, other, 1e-4)
    assert stream.position == 4
    stream.clear()
    first = model(tokens[:, :8], stream=stream)[0]
    detached = gradient((model(tokens[:, 8:], stream=stream)[0] * weight[:, 8:]).sum())
    assert first.requires_grad and any((a - b).abs().max() > 1e-6 for a, b in zip(whole, detached))


def test_a_saved_state_goes_on_to_the_last_bit():
    model, tokens = tiny_model(torch.float32, causal_decay=True), text(9)
    straight, saved = Stream(), Stream()
    with torch.no_grad():
        model(tokens[:, :5], stream=straight)
        state = straight.state_dict()
        assert state["count"].tolist() == [5, 5] and state["position"] == 5
        saved.load_state_dict(state)
        one, other = (model(tokens[:, 5:], stream=stream)[0] for stream in (straight, saved))
    assert torch.equal(one, other)


def test_layers_are_not_dropped_from_a_stream():
    model, stream = tiny_model(decoder_layerdrop=0.5).train(), Stream()
    with pytest.raises(InputError, match="--decoder-layerdrop does not work with a stream.*model.eval()"):
        model(text(5), stream=stream)
    model.eval()(text(5), stream=stream)
    assert stream.position == 5


def test_a_saved_state_goes_to_where_the_model_is():
    """A checkpoint is read on the CPU, and its state is then moved to the device of the model."""
    model, stream, saved = tiny_model(), Stream(), Stream()
    model(text(5), stream=stream)
    saved.load_state_dict(stream.state_dict())
    moved = model.to("meta").decoder.to_device(saved.state)
    assert {x.device.type for x in tensors_of(moved)} == {"meta"}


def test_the_state_does_not_grow():
    model, stream, sizes = tiny_model(), Stream(), set()
    with torch.no_grad():
        for _ in range(20):
            model(text(7), stream=stream)
            sizes.add(sum(x.numel() for x in tensors_of(stream.state)))
    assert len(sizes) == 1 and stream.position == 140  # beyond the 30 positions of the table


@pytest.mark.parametrize("rows, options", [(3, {}), (2, {"decoder_layers": 3})])
def test_the_state_of_other_rows_or_another_model_is_refused(rows, options):
    stream = Stream()
    tiny_model()(text(5), stream=stream)
    with pytest.raises(InputError, match="the stream has the state of 2 layers and batch size 2"):
        tiny_model(**options)(text(5, rows), stream=stream)


def test_weights_in_8_bits_read_on():
    """Logits are equal, except where rounding moves a value to the next of the 256 levels."""
    model, tokens, stream = tiny_model(torch.float32), text(9), Stream()
    quantise(model)
    with torch.no_grad():
        assert_near(model(tokens, stream=Stream())[0], model(tokens)[0])
        read = torch.cat([model(part, stream=stream)[0] for part in tokens.split(4, dim=1)], dim=1)
        assert_near(read, model(tokens)[0], 2e-3)


def test_learned_positions_end():
    """Padding does not count."""
    model, stream = tiny_model(decoder_learned_pos=True), Stream()
    whole, rows = text(30), text(30).split(20, dim=1)
    model(torch.cat([torch.full((2, 5), PAD), rows[0]], dim=1), stream=stream)
    assert_near(model(rows[1], stream=stream)[0], model(whole)[0][:, 20:])
    stream.clear()
    model(text(20), stream=stream)
    with pytest.raises(InputError, match="a sequence has 40 tokens, the model's positions end at 30"):
        model(text(20), stream=stream)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_decoding_goes_on_from_a_kept_state(variant):
    model, tokens, stream = tiny_model(**VARIANTS[variant]), text(8, rows=1), Stream()
    with torch.no_grad():
        model(tokens[:, :5], stream=stream)
        state, steps, rows = {}, [], tokens[:, 5:].repeat(3, 1)
        model.decoder.continue_from(state, stream.repeat(3))
        for t in range(1, rows.size(1) + 1):
            steps.append(model.decoder(rows[:, :t], incremental_state=state)[0])
        expected = model(tokens)[0][:, 5:].repeat(3, 1, 1)
    assert_near(torch.cat(steps, dim=1), expected)
