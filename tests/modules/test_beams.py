"""Test which sentence each hypothesis of a beam belongs to, and that impossible beams are rejected."""

import pytest
import torch

from luna_fairseq.errors import InputError
from luna_fairseq.models.beams import Hypotheses
from luna_fairseq.modules import LunaAttention, LunaCausalAttention

DEVICE = torch.device("cpu")


@pytest.mark.parametrize(
    "new_order, left, sentences",
    [
        ([1, 1, 2, 4, 3, 5, 8, 8, 6], None, None),  # reordered within their sentences
        ([1, 0, 2, 8, 8, 6], [0, 2], [0, 0, 0, 1, 1, 1]),  # the second sentence is finished
        ([6, 7, 8, 0, 1, 2, 3, 4, 5], [2, 0, 1], [0, 0, 0, 1, 1, 1, 2, 2, 2]),  # sentences in another order
        ([0, 1, 3, 4, 6, 7], [0, 1, 2], [0, 0, 1, 1, 2, 2]),  # one hypothesis less for each sentence
        ([0, 1, 3, 4, 5], [0, 0, 1, 1, 1], [0, 1, 2, 3, 4]),  # different numbers of hypotheses
        ([0, 3, 1], [0, 1, 0], [0, 1, 2]),  # hypotheses of a sentence are not adjacent
        ([], [], []),
    ],
)
def test_reordered_hypotheses(new_order, left, sentences):
    new_order = torch.tensor(new_order, dtype=torch.long)
    kept = Hypotheses.adjacent(9, 3, DEVICE).reorder(new_order)
    if left is None:
        assert kept is None
    else:
        assert [kept[0].tolist(), kept[1].sentences.tolist()] == [left, sentences]
        assert kept[1].each == (len(sentences) // len(left) if left else 0)


@pytest.mark.parametrize("build", [LunaAttention, LunaCausalAttention])
def test_each_sentence_must_have_the_same_number_of_hypotheses(build):
    module, query, packed = build(8, 2), torch.randn(1, 5, 8), torch.randn(3, 2, 8)
    with pytest.raises(InputError, match="5 hypotheses cannot belong to 2 sentences"):
        if build is LunaAttention:
            module.unpack(query, module.pack(packed, packed)[1])
        else:
            module.step(query, packed)


def test_whole_sequences_need_a_packed_sequence_each():
    """Four sequences of three tokens have as many keys as three sequences of four."""
    attention, query, packed = LunaCausalAttention(8, 2), torch.randn(3, 4, 8), torch.randn(5, 3, 8)
    for compute in (attention, attention.weights):
        with pytest.raises(InputError, match="4 hypotheses cannot belong to 3 sentences"):
            compute(query, packed)
