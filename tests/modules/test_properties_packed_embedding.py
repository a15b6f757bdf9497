"""Test the learned packed sequence P that the first encoder layer receives, and word dropout."""

import math

import pytest
import torch
from old_torch import without_memory
from tiny_luna import assert_close, batch, sentences, tiny_model

from fairseq.modules import FairseqDropout, SinusoidalPositionalEmbedding
from luna_fairseq.errors import InputError
from luna_fairseq.modules import PackedEmbedding
from luna_fairseq.modules.embedding import drop_words

L, C = 5, 12
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
SINUSOIDAL = SinusoidalPositionalEmbedding.get_embedding


@pytest.mark.parametrize(
    "lengths, rows, left_out",
    [
        ([9, 7, 5], 5, None),  # no sentence is shorter than P
        ([9, 3, 1], 5, [0, 2, 4]),
        ([4, 3, 1], 4, [0, 1, 3]),  # P is never longer than the longest sentence
        ([3, 3], 3, None),
        ([1], 1, None),
        ([2, 0], 2, [0, 2]),
        ([0], 1, [1]),
    ],
)
def test_dynamic_length(lengths, rows, left_out):
    packed, mask = PackedEmbedding(L, C)(torch.tensor(lengths))
    assert packed.shape == (rows, len(lengths), C)
    if left_out is None:
        assert mask is None
    else:
        assert mask.shape == (len(lengths), rows) and mask.sum(dim=1).tolist() == left_out
        assert (mask.int().diff(dim=1) >= 0).all()  # padding rows come last


@pytest.mark.parametrize("lengths", [[9, 3, 1], [2, 1]])
def test_fixed_length(lengths):
    module = PackedEmbedding(L, C, fix_length=True)
    packed, mask = module(torch.tensor(lengths))
    assert mask is None
    assert torch.equal(packed, module.weight.unsqueeze(1).expand(L, len(lengths), C))


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("positions", [None, SINUSOIDAL], ids=["no positions", "sinusoidal"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_values_equal_a_computation_by_hand(scale, positions, layer_norm):
    module = PackedEmbedding(L, C, scale=scale, positions=positions, layer_norm=layer_norm)
    packed, _ = module(torch.tensor([4, 4]))
    expected = module.weight[:4] * (math.sqrt(C) if scale else 1)
    if positions:  # sin and cos halves, frequencies from 1 to 1/10000, first row at position 0
        frequency = torch.tensor([10000 ** (-i / (C // 2 - 1)) for i in range(C // 2)])
        angle = torch.arange(4)[:, None] * frequency
        expected = expected + torch.cat([angle.sin(), angle.cos()], dim=1)
    if layer_norm:
        expected = torch.nn.functional.layer_norm(expected, (C,))
    for b in range(2):
        assert_close(packed[:, b], expected, tolerance=1e-5)


def test_the_parameter_is_not_changed_and_positions_are_not_saved():
    module = PackedEmbedding(L, C, scale=True, positions=SINUSOIDAL)
    before = module.weight.detach().clone()
    module(torch.tensor([3, 9]))[0].sum().backward()
    assert torch.equal(module.weight, before) and module.weight.grad.all()
    assert list(module.state_dict()) == ["weight"]


def test_positions_survive_conversions_and_the_device_meta():
    expected = tiny_model(torch.float32).encoder
    tables = expected.packed_embedding.positions, expected.embed_positions.weights
    source = batch(sentences((9, 4), 23))
    rounded = tiny_model(torch.float32).encoder.bfloat16()
    rounded(source)
    with without_memory():
        empty = tiny_model(torch.float32).encoder
    for encoder in (rounded.float(), empty.to_empty(device="cpu")):
        assert_close(encoder.packed_embedding.positions, tables[0], tolerance=1e-7)
        assert_close(encoder.embed_positions.weights, tables[1], tolerance=1e-7)
        encoder.load_state_dict(expected.state_dict())
        assert torch.equal(*(x(source)["encoder_out"][0] for x in (encoder, expected)))


@pytest.mark.skipif(TORCH < (2, 1), reason="load_state_dict has no assign")
def test_positions_of_a_model_whose_weights_are_assigned():
    with without_memory():
        module = PackedEmbedding(L, C, positions=SINUSOIDAL)
    other = PackedEmbedding(L, C, positions=SINUSOIDAL)
    module.load_state_dict(other.state_dict(), assign=True)
    assert torch.equal(module(torch.tensor([4]))[0], other(torch.tensor([4]))[0])


def test_dropout_is_sampled_for_each_sentence():
    torch.manual_seed(0)
    module = PackedEmbedding(L, C, dropout=0.5)
    packed, _ = module(torch.tensor([9, 9]))
    assert not torch.equal(packed[:, 0], packed[:, 1])
    packed, _ = module.eval()(torch.tensor([9, 9]))
    assert torch.equal(packed[:, 0], packed[:, 1])


def test_initialisation():
    torch.manual_seed(0)
    weight = PackedEmbedding(50, 400).weight
    assert weight.std().item() == pytest.approx(400**-0.5, rel=0.02)
    assert abs(weight.mean().item()) < 2e-3


@pytest.mark.parametrize("length", [0, -3])
def test_a_length_below_1_is_rejected(length):
    with pytest.raises(
        InputError, match=f"projection length is {length}: --projection-length must be 1 or more"
    ):
        PackedEmbedding(length, C)


def test_word_dropout_drops_whole_vectors_and_keeps_the_expectation():
    torch.manual_seed(0)
    embedding, dropout = torch.rand(60, 70, C) + 1, FairseqDropout(0.3)
    dropped = drop_words(embedding, dropout)
    gone = (dropped == 0).all(dim=-1)
    assert gone.float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert_close(dropped[~gone], embedding[~gone] / 0.7, tolerance=1e-6)
    assert dropped.mean().item() == pytest.approx(embedding.mean().item(), rel=0.03)
    assert 0 < gone.sum(dim=1).float().std()  # tokens are dropped one by one, not by sentence
    assert torch.equal(drop_words(embedding, dropout.eval()), embedding)
    assert drop_words(embedding, FairseqDropout(0.0)) is embedding


LOOK_UP = {"anchored_packed": True, "packed_lookup": 2}


@pytest.mark.parametrize(
    "length, options, warnings",
    [
        (81, {}, 1),
        (80, {}, 0),
        (81, {"anchored_packed": True}, 1),
        (81, {"cross_attention": "softmax"}, 0),
        (81, LOOK_UP, 1),
        (65, {**LOOK_UP, "projection_length": 3}, 1),
        (64, {**LOOK_UP, "projection_length": 3}, 0),  # every token of a short source is read
        (81, {**LOOK_UP, "projection_length": 2}, 0),  # every row is looked up
    ],
)
def test_sources_that_are_too_long_for_p_bring_one_warning(caplog, length, options, warnings):
    encoder = tiny_model(max_source_positions=100, **options).encoder
    for _ in range(2):
        encoder(batch(sentences((length, 3), 23), extra=5))  # padding does not count
    said = [record.getMessage() for record in caplog.records if "a source has" in record.getMessage()]
    advice = f"use --projection-length {-(-length // 16)} or more"
    assert len(said) == warnings and all(advice in line for line in said)
