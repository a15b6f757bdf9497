"""``causal``: forms of causal attention on projected heads, Luna's, the ways in which it is computed
elsewhere, and softmax."""

import argparse
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.benchmark.heads import AttentionTask, Inputs, why_no_sdpa
from luna_fairseq.benchmark.task import Case, Row
from luna_fairseq.ops.causal_luna import causal_luna, pack_weights, why_not_triton_here


def form(x: Inputs, backend: str, decay: bool) -> Tensor:
    """A form that the library offers, of q, k, v, pack_k [B, H, T, K] and pack_q [B, H, L, K] as projections
    leave them; v is k where there is none, and rows [B, L] and positions [B, T] are padded where there are.
    With ``decay`` it forgets, as fast as models do at the start."""
    weights = pack_weights(x["pack_q"], x["pack_k"], "softplus")
    q, heads = x["q"], x["q"].size(1)
    log_decay = -(2 ** (-8 / heads * torch.arange(1, heads + 1, device=q.device))) if decay else None
    parts = q, x["k"], x.get("v", x["k"]), weights, x.get("rows"), x.get("positions")
    output = causal_luna(*parts, backend=backend, log_decay=log_decay)
    # What stands at padded positions has no meaning.
    return output.masked_fill(x["positions"][:, None, :, None], 0.0) if "positions" in x else output


def softmax(x: Inputs) -> Tensor:
    """Causal softmax attention by torch's fused function."""
    return F.scaled_dot_product_attention(x["q"], x["k"], x.get("v", x["k"]), is_causal=True)


def why_no_triton(args: argparse.Namespace, case: Case) -> str:
    """Why the Triton form does not run, or nothing."""
    if case["l"] > 256 or args.head_dim > 128 or args.dtype == "float64":
        return "it takes l up to 256, K up to 128, and no float64"
    return why_not_triton_here(torch.device(args.device))


def luna(backend: str, decay: bool = False, **options: Any) -> Row:
    """A row of Luna's, held to the definition, which is also the cumulative sum of the outer products of all
    positions; those that forget are optional."""
    make, naive = partial(form, backend=backend, decay=decay), backend == "naive"
    definition = "" if naive else "decay-naive" if decay else "cumsum"
    return Row(make, equals=definition, limited=naive, optional=decay, **options)


CAUSAL = {
    "cumsum": luna("naive", peer=True),
    "chunk": luna("chunk"),
    "triton": luna("triton", why_not=why_no_triton),
    "decay-naive": luna("naive", decay=True),
    "decay": luna("chunk", decay=True),
    "decay-triton": luna("triton", decay=True, why_not=why_no_triton),
    "sdpa": Row(softmax, why_not=why_no_sdpa, peer=True),
}


class CausalAttention(AttentionTask):
    """``causal``."""

    name = "causal"
    notes = """causal attention: the forms of Luna's beside torch's scaled_dot_product_attention
    of projected heads, Luna's pack weights (softplus) included, the projections themselves left out. cumsum
    sums the outer products of all positions over time: the way the definition is usually trained, and itself
    the library's naive form. decay and decay-triton are forms that forget, held to decay-naive. sdpa is
    torch's fused attention with is_causal, a different function of the same inputs. forward: without
    gradients; forward+backward: gradients of every input. Before anything is timed, output and gradients of
    the other forms of Luna were compared with those of cumsum in float64, beyond its longest sequence those
    of one head.
    """
    table = CAUSAL
    options = {
        **AttentionTask.options,
        "--tied": dict(action="store_true", help="keys are values, as in the model by default"),
        "--masks": dict(action="store_true", help="positions on either side and rows of P are padded"),
    }

    def problem(self, case: Case) -> Inputs:
        args, L, T = self.args, case["l"], case["T"]
        x = self.random(pack_q=L, q=T, k=T, pack_k=T, gradient=T, **({} if args.tied else {"v": T}))
        if args.masks:
            even, position = torch.arange(args.batch)[:, None] % 2 == 0, torch.arange(T)
            padded = (even & (position < T // 3)) | (~even & (position >= T - T // 4))
            rows = even & (torch.arange(L) >= max(L - 1, 1))
            x.update(rows=rows.to(args.device), positions=padded.to(args.device))
        return x
