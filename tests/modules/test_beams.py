"""Test which sentence each hypothesis of a beam belongs to, and that impossible beams are rejected."""

import pytest
import torch

from luna_fairseq.errors import InputError
from luna_fairseq.models.beams import group_by_sentence
from luna_fairseq.modules import LunaAttention, LunaCausalAttention


@pytest.mark.parametrize(
    "before, kept, after",
    [
        ([0, 0, 0, 2, 2, 2], [0, 2], [0, 0, 0, 1, 1, 1]),  # the second sentence is finished
        ([2, 2, 2, 0, 0, 0, 1, 1, 1], [2, 0, 1], [0, 0, 0, 1, 1, 1, 2, 2, 2]),  # in another order
        ([0, 0, 1, 1, 2, 2], [0, 1, 2], [0, 0, 1, 1, 2, 2]),  # one hypothesis less for each sentence
        ([0, 0, 1, 1, 1], [0, 0, 1, 1, 1], [0, 1, 2, 3, 4]),  # different numbers of hypotheses
        ([0, 1, 0], [0, 1, 0], [0, 1, 2]),  # hypotheses of a sentence are not adjacent
        ([], [], []),
    ],
)
def test_hypotheses_are_grouped_by_sentence(before, kept, after):
    found = group_by_sentence(torch.tensor(before, dtype=torch.long))
    assert [x.tolist() for x in found] == [kept, after]


@pytest.mark.parametrize("build", [LunaAttention, LunaCausalAttention])
def test_each_sentence_must_have_the_same_number_of_hypotheses(build):
    module, query, packed = build(8, 2), torch.randn(1, 5, 8), torch.randn(3, 2, 8)
    with pytest.raises(InputError, match="5 hypotheses cannot belong to 2 sentences"):
        if build is LunaAttention:
            module.unpack(query, module.pack(packed, packed)[1])
        else:
            module(query, module.read(packed))


def test_whole_sequences_need_a_packed_sequence_each():
    """Four sequences of three tokens have as many keys as three sequences of four."""
    attention, query, packed = LunaCausalAttention(8, 2), torch.randn(3, 4, 8), torch.randn(5, 3, 8)
    for compute in (attention, attention.weights):
        with pytest.raises(InputError, match="4 hypotheses cannot belong to 3 sentences"):
            compute(query, attention.read(packed))


def test_hypotheses_of_a_sentence_attend_to_its_unpadded_rows_of_p():
    attention, query = LunaCausalAttention(8, 2, untie_kv=True), torch.randn(5, 6, 8)
    packed, mask = torch.randn(4, 3, 8), torch.arange(4) >= torch.tensor([4, 2, 1])[:, None]
    repeated = packed.repeat_interleave(2, dim=1), mask.repeat_interleave(2, dim=0)
    expected = attention.weights(query, attention.read(*repeated))
    for found, weights in zip(attention.weights(query, attention.read(packed, mask)), expected):
        torch.testing.assert_close(found, weights)


@pytest.mark.parametrize("backend", ["naive", "chunk", "parallel"])
@pytest.mark.parametrize("n", [1, 2])
def test_sentences_that_share_p_may_have_different_masks(n, backend):
    attention = LunaCausalAttention(8, 2, backend=backend)
    query, packed = torch.randn(5, 3 * n, 8), torch.randn(4, 1, 8)
    mask = torch.arange(4) >= torch.tensor([4, 2, 1])[:, None]
    memory = attention.read(packed, mask)
    repeated = attention.read(packed.expand(4, 3 * n, 8), mask.repeat_interleave(n, dim=0))
    expected, _ = attention(query, repeated)
    torch.testing.assert_close(attention(query, memory)[0], expected)
    for found, weights in zip(attention.weights(query, memory), attention.weights(query, repeated)):
        torch.testing.assert_close(found, weights)
    prefix, state = attention(query[:4], memory, keep_state=True)
    last, _ = attention(query[4:], memory, state)
    torch.testing.assert_close(torch.cat([prefix, last]), expected)


def test_p_and_its_mask_must_belong_to_the_same_sentences():
    with pytest.raises(InputError, match="mask of P for 2 sentences, got one for 3 sentences"):
        LunaCausalAttention(8, 2).read(torch.randn(4, 2, 8), torch.zeros(3, 4, dtype=torch.bool))
