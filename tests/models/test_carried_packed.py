"""A model that carries P reads a text segment by segment; each begins with the last P of the one before."""

import pytest
import tiny_models
import torch
from tiny_luna import batch, sentences
from tiny_masked_lm import tiny_model

from luna_fairseq.errors import InputError
from luna_fairseq.models.carried_packed import CarriesPacked, PackedStream

CARRY = [{"carry_packed": True, "anchored_packed": anchored} for anchored in (False, True)]


def text(length=18, rows=2):
    return batch(sentences((length,) * rows, 23))


def classifier(**options):
    carry = {"use_p": True, "carry_packed": True, "segment_length": 6}
    return tiny_models.classifier(**{**carry, **options})


@pytest.mark.parametrize("options", CARRY)
def test_reading_on_gives_what_reading_at_once_gives(options):
    model, tokens, stream = tiny_model(segment_length=6, **options), text(), PackedStream()
    at_once, saved = model(tokens)[0], PackedStream()
    parts = [model(tokens[:, :12], stream=stream, keep_after=6)[0]]
    saved.load_state_dict(stream.state_dict())
    parts += [model(part, stream=saved)[0] for part in tokens[:, 6:].split(6, dim=1)]
    torch.testing.assert_close(torch.cat([parts[0][:, :6], *parts[1:]], dim=1), at_once)


@pytest.mark.parametrize("options", CARRY)
def test_a_later_segment_depends_on_the_first_one(options):
    model, tokens = tiny_model(segment_length=6, **options), text()
    other = tokens.clone()
    other[0, 2] = 4 + (other[0, 2] - 3) % 10
    one, two = (model(x)[0][:, 12:] for x in (tokens, other))
    assert (one - two)[0].abs().max() > 1e-6 and torch.equal(one[1], two[1])


@pytest.mark.parametrize(
    "model", [classifier(), classifier(anchored_packed=True), classifier(use_p=False, sen_rep_type="mp")]
)
def test_a_shorter_text_of_a_batch_keeps_its_p(model):
    tokens = text(rows=3)
    tokens[1, 8:] = tokens[2, 3:] = model.encoder.padding_idx
    for row, length in enumerate((18, 8, 3)):
        torch.testing.assert_close(model(tokens)[row], model(tokens[row : row + 1, :length])[0])


@pytest.mark.parametrize("extra", [0, 9])
def test_states_of_texts_that_have_ended(extra):
    """Those of a text are the same in a batch; after its end P stays as it is."""
    model, lengths = tiny_model(carry_packed=True, segment_length=6), (10, 8, 3)
    tokens = batch(sentences(lengths, 23), extra=extra)
    x, found = model(tokens, return_all_hiddens=True)
    for row, length in enumerate(lengths):
        alone, of_text = model(tokens[row : row + 1, :length], return_all_hiddens=True)
        torch.testing.assert_close(x[row, :length], alone[0])
        for state, expected in zip(found["inner_states"], of_text["inner_states"]):
            torch.testing.assert_close(state[:length, row], expected[:, 0])
        kept = found["packed_features"][row]
        for state, expected in zip(found["packed_states"], of_text["packed_states"]):
            torch.testing.assert_close(state[:, row], kept if length <= 6 else expected[:, 0])


@pytest.mark.parametrize("segments, reached", [(0, 1), (1, 2), (2, 3), (None, 3)])
def test_gradients_go_through_so_many_segments(segments, reached):
    model, embedded = classifier(bptt_segments=segments), []
    model.encoder.embed_tokens.register_forward_hook(
        lambda *call: embedded.append(call[-1]) or call[-1].retain_grad()
    )
    model(text()).sum().backward()
    assert [bool(x.grad is not None and x.grad.any()) for x in embedded] == [
        n >= 3 - reached for n in range(3)
    ]


@pytest.mark.parametrize("carry", [False, True])
def test_what_carries_nothing_is_as_it_was(carry):
    assert isinstance(tiny_model(carry_packed=carry).encoder.sentence_encoder, CarriesPacked) == carry


@pytest.mark.parametrize("rows, options", [(3, {}), (2, {"projection_length": 4})])
def test_the_p_of_another_model_or_batch_is_refused(rows, options):
    carry = {"carry_packed": True, "segment_length": 6}
    stream = PackedStream()
    tiny_model(**carry)(text(6), stream=stream)
    with pytest.raises(InputError, match="the P that is carried on has 5 rows of width 12 for 2 texts"):
        tiny_model(**carry, **options)(text(6, rows), stream=stream)


def test_a_stream_needs_a_model_that_carries_p():
    with pytest.raises(InputError, match="the model does not carry P: give --carry-packed"):
        tiny_model()(text(6), stream=PackedStream())
