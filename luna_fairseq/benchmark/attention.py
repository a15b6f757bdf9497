"""``attention``: Luna's pack and unpack attention beside softmax self-attention, on projected heads."""

import argparse
from functools import partial
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.benchmark import fused_softmax
from luna_fairseq.benchmark.heads import (
    PASSES,
    SMALL_LENGTH,
    Function,
    Shape,
    add_shape_options,
    check_equal,
    longest_naive,
    make_form,
    random_heads,
)
from luna_fairseq.benchmark.measure import Case, Settings, compare_cases
from luna_fairseq.benchmark.options import select
from luna_fairseq.benchmark.report import Section
from luna_fairseq.ops.luna import luna_attention, naive_attention

HELP = "pack and unpack attention: Luna's beside softmax self-attention, written out and fused"
NOTES = (
    "Pack and unpack attention of projected heads; the projections, those of the packed sequence too, are left out.",
    "luna-naive writes the weights out. softmax is self-attention of the same inputs with the T x T weights written",
    "out, sdpa torch's scaled_dot_product_attention. padding half: every second sentence is padded in its second",
    "half, and the pads are masked. forward: without gradients; forward+backward: gradients of every input. Before",
    "anything is timed, output and gradients of luna were compared with luna-naive, those of sdpa with softmax.",
)
SOFTMAX = "softmax"
NAIVE = "luna-naive"
PADDINGS = {"none": False, "half": True}


class Inputs(NamedTuple):
    """q, k, v [B, H, T, K] of the sentence, pack_q [B, H, L, K] of P; key_padding_mask [B, T] or None."""

    q: Tensor
    k: Tensor
    v: Tensor
    pack_q: Tensor
    key_padding_mask: Optional[Tensor]


def make_inputs(shape: Shape, length: int, settings: Settings) -> Tuple[Inputs, Tensor]:
    """Inputs that want gradients, and the gradient of the output [B, H, T, K]."""
    lengths = (length, length, length, shape.projection_length, length)
    *heads, gradient = random_heads(lengths, shape, settings)
    mask = None
    if shape.padded:
        mask = torch.zeros(shape.batch, length, dtype=torch.bool, device=settings.device)
        mask[1::2, (length + 1) // 2 :] = True
    q, k, v, pack_q = (x.requires_grad_() for x in heads)
    return Inputs(q, k, v, pack_q, mask), gradient


def naive(q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Optional[Tensor] = None) -> Tensor:
    """Softmax attention with its weights written out."""
    return naive_attention(q, k, v, key_padding_mask)[0]


def pack_and_unpack(inputs: Inputs, attention: Callable[..., Tensor]) -> Tensor:
    """P attends to the sentence, and the sentence to what P packed."""
    packed = attention(inputs.pack_q, inputs.k, inputs.v, inputs.key_padding_mask)
    return attention(inputs.q, packed, packed)


def softmax(inputs: Inputs) -> Tensor:
    """Self-attention written out."""
    return naive(*inputs[:3], inputs.key_padding_mask)


def fused(inputs: Inputs, sdpa: Callable[..., Tensor]) -> Tensor:
    """Self-attention by one of torch's kernels."""
    return sdpa(*inputs[:3], **mask_option(inputs.key_padding_mask))


def mask_option(key_padding_mask: Optional[Tensor]) -> Dict[str, Tensor]:
    """Keys that are no padding, as scaled_dot_product_attention takes them; nothing where no key is padded."""
    return {} if key_padding_mask is None else {"attn_mask": ~key_padding_mask[:, None, None, :]}


# The first is the definition.
LUNA_FORMS: Dict[str, Function] = {
    NAIVE: partial(pack_and_unpack, attention=naive),
    "luna": partial(pack_and_unpack, attention=luna_attention),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the sub-command."""
    add_shape_options(parser, "softmax and sdpa-math")


def run(args: argparse.Namespace, settings: Settings) -> Section:
    """Check, then time, every form at every length, with and without padding.

    Raises:
        InputError: a form differs from its definition, nothing is timed then; or torch is older than 2.0
    """
    limit = longest_naive(args, settings)
    cases: List[Case] = []
    notes: Dict[str, None] = {}
    names: List[str] = []
    for l in args.projection_length:  # noqa: E741
        for padding, padded in PADDINGS.items():
            shape = Shape(args.batch, args.heads, args.head_dim, l, args.dtype, padded=padded)
            functions, of_shape = usable(shape, settings, args.without)
            names += functions
            notes.update(dict.fromkeys(of_shape))
            for length in (SMALL_LENGTH, *args.lengths):
                check_forms(functions, shape, length, limit, settings)
            for length in args.lengths:
                for direction in PASSES:
                    forms = [
                        make_form(name, function, make_inputs, shape, length, direction, settings)
                        for name, function in within(functions, length, limit).items()
                    ]
                    cases.append(({"l": l, "padding": padding, "T": length, "pass": direction}, forms))
    if max(args.lengths) > limit:
        notes[f"softmax and sdpa-math end at --max-naive-length {limit}."] = None
    peers = [name for name in dict.fromkeys(names) if name not in LUNA_FORMS]
    panels = ("l", "padding", "pass")
    return Section("attention", (*NOTES, *notes, str(shape)), peers, compare_cases(cases, settings), "T", panels)


def usable(shape: Shape, settings: Settings, without: List[str]) -> Tuple[Dict[str, Function], List[str]]:
    """The forms that run with this shape on this device, and notes on the others."""

    def options(length: int) -> Dict[str, Tensor]:
        mask = torch.zeros(2, length, dtype=torch.bool, device=settings.device)
        return mask_option(mask if shape.padded else None)

    what = " with padding" if shape.padded else ""
    kernels, notes = fused_softmax.available(shape.head_dim, shape.dtype, settings, options, what)
    functions = {**LUNA_FORMS, SOFTMAX: softmax}
    functions.update((name, partial(fused, sdpa=sdpa)) for name, sdpa in kernels.items())
    return select(functions, without), notes


def within(functions: Dict[str, Function], length: int, limit: int) -> Dict[str, Function]:
    """The forms that run at that length."""
    limited = (SOFTMAX, fused_softmax.QUADRATIC)
    return {name: function for name, function in functions.items() if length <= limit or name not in limited}


def check_forms(functions: Dict[str, Function], shape: Shape, length: int, limit: int, settings: Settings) -> None:
    """Raise InputError when a form differs from its definition, in its output or a gradient."""
    here = within(functions, length, limit)
    problem = make_inputs(shape, length, settings)
    luna = {name: function for name, function in here.items() if name in LUNA_FORMS and name != NAIVE}
    check_equal(luna, NAIVE, LUNA_FORMS[NAIVE], problem, shape.dtype)
    fused = {name: function for name, function in here.items() if name.startswith("sdpa")}
    check_equal(fused, SOFTMAX, softmax, problem, shape.dtype, whole=length <= limit)
