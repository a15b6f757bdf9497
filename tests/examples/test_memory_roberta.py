"""RoBERTa with a carried memory: what its memory does."""

from argparse import Namespace

import memory_roberta
import pytest
import torch
from tiny_luna import batch, sentences
from tiny_masked_lm import OPTIONS, Task

from luna_fairseq.errors import InputError
from luna_fairseq.models.carried_packed import PackedStream

SEGMENT = 6


def tiny_model(**options):
    torch.manual_seed(0)
    options = {**OPTIONS, "segment_length": SEGMENT, "attention_init": "xavier", **options}
    model = memory_roberta.MemoryRoberta.build_model(Namespace(**options), Task())
    return model.double().eval()


def text(length=18):
    return batch(sentences((length, length), 23))


def test_reading_on_gives_what_reading_at_once_gives():
    model, tokens, stream = tiny_model(), text(), PackedStream()
    parts = [model(part, stream=stream)[0] for part in tokens.split(SEGMENT, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens)[0])


def test_a_later_segment_depends_on_the_first_one_through_memory():
    model, tokens = tiny_model(), text()
    other = tokens.clone()
    other[0, 2] = 4 + (other[0, 2] - 3) % 10
    one, two = (model(x)[0][:, 2 * SEGMENT :] for x in (tokens, other))
    assert (one - two)[0].abs().max() > 1e-6 and torch.equal(one[1], two[1])


def test_memory_is_at_no_distance_and_tokens_are_at_theirs():
    model = tiny_model()
    rows, attention = OPTIONS["projection_length"], model.encoder.sentence_encoder.layers[0].self_attn
    q = k = torch.zeros(2, 3, rows + SEGMENT, 4).double()
    bias = attention.bias(q, k)
    assert not bias[:, :rows].any() and not bias[:, :, :rows].any()
    tokens = torch.zeros(2, 3, SEGMENT, 4).double()
    assert torch.equal(bias[:, rows:, rows:], type(attention).bias(attention, tokens, tokens))
    assert (bias[:, rows, rows + 1 :] < 0).all()


def test_another_attention_is_refused():
    with pytest.raises(InputError, match="--attention linear: memory_roberta has softmax attention"):
        tiny_model(attention="linear")


def test_gradients_go_into_the_segment_before():
    model, embedded = tiny_model(), []
    model.encoder.sentence_encoder.embed_tokens.register_forward_hook(
        lambda *call: embedded.append(call[-1]) or call[-1].retain_grad()
    )
    model(text(12))[0][:, SEGMENT:].sum().backward()
    assert embedded[0].grad.any()
