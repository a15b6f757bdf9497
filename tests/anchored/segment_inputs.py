"""Random inputs of look-ups and windows, with padding on one side or the other."""

import torch

B, H, K, L, S = 3, 2, 5, 4, 11
LENGTHS = {"whole": (S, S, S), "right": (S, 7, 2), "left": (S, 7, 2), "nothing left": (S, 0, 1)}


def masks(kind):
    """Return the padding masks of the context [B, S] and of the rows [B, L]."""
    position, n = torch.arange(S)[None, :], torch.tensor(LENGTHS[kind])[:, None]
    context = position < S - n if kind == "left" else position >= n
    return context, torch.arange(L)[None, :] >= n


def draw_inputs(dtype=torch.float64, batch=B, queries=S, rows=L, tokens=S):
    """Return queries, keys and values of rows, keys and values of tokens, and a number for each head."""
    generator = torch.Generator().manual_seed(0)
    lengths = (queries, rows, rows, tokens, tokens)
    shapes = [*((batch, H, length, K) for length in lengths), (H,)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
