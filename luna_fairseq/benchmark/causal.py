"""``causal``: forms of causal attention on projected heads, Luna's, the ways in which it is computed
elsewhere, and softmax."""

import argparse
from functools import partial
from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.benchmark.heads import AttentionTask, why_no_sdpa
from luna_fairseq.benchmark.measure import Case
from luna_fairseq.benchmark.task import Row
from luna_fairseq.ops.causal_luna import causal_luna, pack_weights, why_not_triton_here


class Inputs(NamedTuple):
    """q, k, v, pack_k [B, H, T, K], pack_q [B, H, L, K], as projections leave them; v is k when they are
    tied. Masks [B, L] and [B, T], or None."""

    q: Tensor
    k: Tensor
    v: Tensor
    pack_k: Tensor
    pack_q: Tensor
    packed_padding_mask: Optional[Tensor]
    key_padding_mask: Optional[Tensor]


def form(inputs: Inputs, backend: str, decay: bool) -> Tensor:
    """A form that the library offers; with ``decay`` it forgets, as fast as models do at the start."""
    weights = pack_weights(inputs.pack_q, inputs.pack_k, "softplus")
    heads = inputs.q.size(1)
    log_decay = -(2 ** (-8 / heads * torch.arange(1, heads + 1, device=inputs.q.device))) if decay else None
    masks = inputs.packed_padding_mask, inputs.key_padding_mask
    output = causal_luna(*inputs[:3], weights, *masks, backend=backend, log_decay=log_decay)
    # What stands at padded positions has no meaning.
    return output if masks[1] is None else output.masked_fill(masks[1][:, None, :, None], 0.0)


def softmax(inputs: Inputs) -> Tensor:
    """Causal softmax attention by torch's fused function."""
    return F.scaled_dot_product_attention(*inputs[:3], is_causal=True)


def why_no_triton(args: argparse.Namespace, case: Case, device: str) -> str:
    """Why the Triton form does not run, or nothing."""
    if case["l"] > 256 or args.head_dim > 128 or args.dtype == "float64":
        return "it takes l up to 256, K up to 128, and no float64"
    return why_not_triton_here(torch.device(device))


def luna(backend: str, decay: bool = False, **options: Any) -> Row:
    """A row of Luna's, held to the definition, which is also the cumulative sum of the outer products of all
    positions; those that forget are optional."""
    definition = "decay-naive" if decay else "cumsum"
    options["why_not"] = why_no_triton if backend == "triton" else None
    naive = backend == "naive"
    make = partial(form, backend=backend, decay=decay)
    return Row(make, equals="" if naive else definition, limited=naive, optional=decay, **options)


CAUSAL = {
    "cumsum": luna("naive", peer=True),
    "chunk": luna("chunk"),
    "triton": luna("triton"),
    "decay-naive": luna("naive", decay=True),
    "decay": luna("chunk", decay=True),
    "decay-triton": luna("triton", decay=True),
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

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        add = parser.add_argument
        add("--tied", action="store_true", help="keys are values, as in the model by default")
        add("--masks", action="store_true", help="positions on either side and rows of P are padded")

    def problem(self, case: Case) -> Tuple[Inputs, Tensor]:
        args, L, T = self.args, case["l"], case["T"]
        *of_tokens, gradient, pack_q = self.random(*[T] * (4 if args.tied else 5), L)
        q, k, *v, pack_k = (x.requires_grad_() for x in of_tokens)
        masks = [None, None]
        if args.masks:
            even, position = torch.arange(args.batch)[:, None] % 2 == 0, torch.arange(T)
            padded = (even & (position < T // 3)) | (~even & (position >= T - T // 4))
            rows = even & (torch.arange(L) >= max(L - 1, 1))
            masks = [rows.to(self.settings.device), padded.to(self.settings.device)]
        return Inputs(q, k, v[0] if v else k, pack_k, pack_q.requires_grad_(), *masks), gradient
