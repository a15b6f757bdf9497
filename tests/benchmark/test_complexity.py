"""Exponents of the complexity table (docs/results/from_bahdanau_to_luna.md).

The tests count the operations of each attention at several lengths n and widths d.
"""

import math
from functools import partial

import pytest
import torch

from luna_fairseq.benchmark.attention import pack_and_unpack
from luna_fairseq.benchmark.measure import cpu_flop_formulas
from luna_fairseq.peers import PeerOptions, build_attention
from luna_fairseq.peers.attention import BIDIRECTIONAL

flop_counter = pytest.importorskip("torch.utils.flop_counter", reason="needs torch 2.1 or later")
HEADS, L = 2, 16
# Exponents of n and of d; a logarithm counts for 0.
THEORY = {
    "softmax": (2, 1),
    "local": (1, 1),
    "sparse": (1.5, 1),
    "reformer": (1, 1),
    "linformer": (1, 1),
    "linear": (1, 2),
    "luna": (1, 1),
    "recurrent": (1, 2),
    "convolution": (1, 2),
}


def job(name, n, d):
    """Count the operations of one layer's forward pass, without its projections."""
    x = torch.randn(n, 1, d)
    if name == "recurrent":
        cell = torch.nn.LSTMCell(d, d)  # torch's LSTM is one operation, which its counter does not know
        return lambda: [cell(x[t]) for t in range(n)]
    if name == "convolution":
        return partial(torch.nn.Conv1d(d, d, 3, padding=1), x.permute(1, 2, 0))
    if name == "luna":
        lengths = {"q": n, "k": n, "v": n, "pack_q": L}
        heads = {part: torch.randn(1, HEADS, length, d // HEADS) for part, length in lengths.items()}
        return partial(pack_and_unpack, heads)
    options = PeerOptions()
    options.sparse_stride = max(1, round(math.sqrt(n)))
    module = build_attention(name, d, HEADS, BIDIRECTIONAL, options, max_positions=n)
    return partial(module.attend, *module.project(x), padding_mask=None)


def operations(name, n, d):
    run = job(name, n, d)
    with flop_counter.FlopCounterMode(
        display=False, custom_mapping=cpu_flop_formulas()
    ) as counter, torch.no_grad():
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", THEORY)
def test_operations_grow_as_theory_says(name):
    n_exponent = math.log2(operations(name, 2048, 64) / operations(name, 512, 64)) / 2
    d_exponent = math.log2(operations(name, 512, 256) / operations(name, 512, 64)) / 2
    assert (n_exponent, d_exponent) == pytest.approx(THEORY[name], abs=0.12)
