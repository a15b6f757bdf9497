"""What a masked language model predicts from: the changes of the context, and perplexities by hand."""

import math

import pytest
import torch
from tiny_luna import PAD
from tiny_masked_lm import BOS, Task, tiny_model
from torch.nn import functional as F

from luna_fairseq.errors import InputError
from luna_fairseq.masked_lm.context_use import CHANGES, hide_neighbours, measure_context_use, shuffle

MASK = 9
TOKENS = torch.tensor([[BOS, 4, MASK, 6, 7, 8, 5, 2], [BOS, MASK, 5, 4, 2, PAD, PAD, PAD]])
PREDICTED = TOKENS.eq(MASK)
FIXED = TOKENS.eq(BOS) | TOKENS.eq(2) | TOKENS.eq(PAD)


def task():
    found = Task()
    found.mask_idx = MASK
    return found


def test_changes_of_the_context():
    random = torch.Generator().manual_seed(3)
    hidden = hide_neighbours(TOKENS, FIXED, PREDICTED, MASK, random)
    assert hidden.tolist() == [[BOS, MASK, MASK, MASK, 7, 8, 5, 2], [BOS, MASK, MASK, 4, 2, PAD, PAD, PAD]]
    shuffled = shuffle(TOKENS, FIXED, PREDICTED, MASK, random)
    stays = FIXED | PREDICTED
    assert torch.equal(shuffled[stays], TOKENS[stays]) and not torch.equal(shuffled, TOKENS)
    assert torch.equal(shuffled.sort(dim=1)[0], TOKENS.sort(dim=1)[0])


def test_perplexity_and_batches():
    model = tiny_model()
    target = torch.full_like(TOKENS, PAD)
    target[PREDICTED] = torch.tensor([5, 6])
    batch = {"net_input": {"src_tokens": TOKENS}, "target": target}
    found = measure_context_use(model, [batch], task())
    assert list(found) == list(CHANGES)
    loss = F.cross_entropy(model(TOKENS)[0][PREDICTED], torch.tensor([5, 6]))
    assert found["context as it is"] == pytest.approx(math.exp(loss.item()))
    assert len(set(found.values())) == 3
    single = [{"net_input": {"src_tokens": TOKENS[i : i + 1]}, "target": target[i : i + 1]} for i in range(2)]
    alone = measure_context_use(model, single, task())
    for name in ("context as it is", "neighbours masked, too"):
        assert alone[name] == pytest.approx(found[name])
    with pytest.raises(InputError, match="nothing to predict"):
        measure_context_use(model, [{**batch, "target": torch.full_like(TOKENS, PAD)}], task())
