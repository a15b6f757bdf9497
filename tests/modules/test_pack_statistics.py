"""Entropy and coverage of pack attention."""

import pytest
import torch

from luna_fairseq.modules.pack_statistics import pack_statistics


def test_rows_that_pack_one_token_each_and_rows_that_pack_all_alike():
    sharp = torch.eye(4, 8).expand(2, 3, 4, 8)
    assert pack_statistics(sharp) == pytest.approx({"pack_entropy": 0.0, "pack_coverage": 0.5}, abs=1e-6)
    even = torch.full((2, 3, 4, 8), 1 / 8)
    assert pack_statistics(even) == pytest.approx({"pack_entropy": 1.0, "pack_coverage": 1 / 8}, abs=1e-6)


def test_padding_and_rows_that_are_left_out_count_for_nothing():
    torch.manual_seed(0)
    weights = torch.randn(1, 3, 4, 6).softmax(-1)
    padded = torch.cat([torch.cat([weights, torch.zeros(1, 3, 4, 2)], dim=3), torch.rand(1, 3, 2, 8)], dim=2)
    tokens = torch.arange(8)[None] >= 6
    rows = torch.arange(6)[None] >= 4
    assert pack_statistics(padded, tokens, rows) == pytest.approx(pack_statistics(weights), abs=1e-6)
