"""Which sentence every hypothesis belongs to, and what is refused."""

import pytest
import torch

from luna_fairseq.errors import InputError
from luna_fairseq.models.beams import Hypotheses
from luna_fairseq.modules import LunaAttention, LunaCausalAttention

DEVICE = torch.device("cpu")


@pytest.mark.parametrize(
    "new_order, left, sentences",
    [
        ([1, 1, 2, 4, 3, 5, 8, 8, 6], None, None),  # within their sentences
        ([1, 0, 2, 8, 8, 6], [0, 2], [0, 0, 0, 1, 1, 1]),  # the second one is finished
        ([6, 7, 8, 0, 1, 2, 3, 4, 5], [2, 0, 1], [0, 0, 0, 1, 1, 1, 2, 2, 2]),  # in another order
        ([0, 1, 3, 4, 6, 7], [0, 1, 2], [0, 0, 1, 1, 2, 2]),  # a hypothesis less of each
        ([0, 1, 3, 4, 5], [0, 0, 1, 1, 1], [0, 1, 2, 3, 4]),  # not as many of each any more
        ([0, 3, 1], [0, 1, 0], [0, 1, 2]),  # no longer in a row
        ([], [], []),
    ],
)
def test_reordered_hypotheses(new_order, left, sentences):
    new_order = torch.tensor(new_order, dtype=torch.long)
    kept = Hypotheses.in_a_row(9, 3, DEVICE).reorder(new_order)
    if left is None:
        assert kept is None
    else:
        assert [kept[0].tolist(), kept[1].sentences.tolist()] == [left, sentences]
        assert kept[1].each == (len(sentences) // len(left) if left else 0)


@pytest.mark.parametrize("build", [LunaAttention, LunaCausalAttention])
def test_as_many_hypotheses_to_each_sentence(build):
    module, query, packed = build(8, 2), torch.randn(1, 5, 8), torch.randn(3, 2, 8)
    with pytest.raises(InputError, match="5 hypotheses cannot belong to 2 sentences"):
        if build is LunaAttention:
            module.unpack(query, module.pack(packed, packed)[1])
        else:
            module.step(query, packed)
