"""``causal``: the forms of Luna's causal attention, and softmax attention, on projected heads."""

import argparse
from functools import partial
from typing import Callable, Dict, List, Tuple

from torch import Tensor

from luna_fairseq.benchmark import fused_softmax
from luna_fairseq.benchmark.causal_forms import CUMSUM, FORMS, LIMITED, PEERS, Inputs, available, make_inputs
from luna_fairseq.benchmark.heads import (
    PASSES,
    SMALL_LENGTH,
    Function,
    Shape,
    add_shape_options,
    check_equal,
    longest_naive,
    make_form,
)
from luna_fairseq.benchmark.measure import Case, Settings, compare_cases
from luna_fairseq.benchmark.options import select
from luna_fairseq.benchmark.report import Section

HELP = "causal attention: the forms of Luna's beside torch's scaled_dot_product_attention"
NOTES = (
    "Causal attention of projected heads, Luna's pack weights (softplus) included, the projections themselves left",
    "out. cumsum sums the outer products of all positions over time: the way the definition is usually trained, and",
    "itself the library's naive form. loop does the same one position at a time. sdpa is torch's",
    "scaled_dot_product_attention with is_causal, a different function of the same inputs. forward: without",
    "gradients; forward+backward: gradients of every input. Before anything is timed, output and gradients of the",
    "other forms of Luna were compared with those of cumsum, beyond its longest sequence those of one head.",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the sub-command."""
    add_shape_options(parser, "cumsum, loop and sdpa-math")
    parser.add_argument("--tied", action="store_true", help="keys are values: one tensor, as in the model by default")


def run(args: argparse.Namespace, settings: Settings) -> Section:
    """Check, then time, every form at every length.

    Raises:
        InputError: a form of Luna differs from the definition, nothing is timed then; or torch is older than 2.0
    """
    limit = longest_naive(args, settings)
    cases: List[Case] = []
    notes: Dict[str, None] = {}
    names: List[str] = []
    for l in args.projection_length:  # noqa: E741
        shape = Shape(args.batch, args.heads, args.head_dim, l, args.dtype, args.tied)
        functions, of_shape = usable(shape, settings, args.without)
        names += functions
        notes.update(dict.fromkeys(of_shape))
        for length in (SMALL_LENGTH, *args.lengths):
            check_forms(functions, shape, length, limit, settings)
        for length in args.lengths:
            here = within(functions, length, limit)
            for direction in PASSES:
                forms = [
                    make_form(name, function, make_inputs, shape, length, direction, settings)
                    for name, function in here.items()
                ]
                cases.append(({"l": l, "T": length, "pass": direction}, forms))
    if max(args.lengths) > limit:
        notes[f"{', '.join(LIMITED)} and sdpa-math end at --max-naive-length {limit}."] = None
    peers = [name for name in dict.fromkeys(names) if name in PEERS or name.startswith("sdpa")]
    return Section(
        "causal", (*NOTES, *notes, str(shape)), peers, compare_cases(cases, settings), length="T", panels=("l", "pass")
    )


def usable(shape: Shape, settings: Settings, without: List[str]) -> Tuple[Dict[str, Function], List[str]]:
    """The forms that run with this shape on this device, and notes on the others."""
    names, notes = available(shape, settings)
    kernels, more = fused_softmax.available(shape.head_dim, shape.dtype, settings, lambda _: {"is_causal": True})
    functions: Dict[str, Function] = {name: FORMS[name] for name in names}
    functions.update((name, partial(softmax, sdpa=sdpa)) for name, sdpa in kernels.items())
    return select(functions, without), notes + more


def softmax(inputs: Inputs, sdpa: Callable[..., Tensor]) -> Tensor:
    """Causal softmax attention by one of torch's kernels."""
    return sdpa(inputs.q, inputs.k, inputs.v, is_causal=True)


def within(functions: Dict[str, Function], length: int, limit: int) -> Dict[str, Function]:
    """The forms that run at that length."""
    limited = (*LIMITED, fused_softmax.QUADRATIC)
    return {name: function for name, function in functions.items() if length <= limit or name not in limited}


def check_forms(functions: Dict[str, Function], shape: Shape, length: int, limit: int, settings: Settings) -> None:
    """Raise InputError when a form of Luna differs from the definition, in its output or a gradient."""
    others = {n: f for n, f in within(functions, length, limit).items() if n in FORMS and n != CUMSUM}
    problem = make_inputs(shape, length, settings)
    check_equal(others, CUMSUM, FORMS[CUMSUM], problem, shape.dtype, whole=length <= limit)
