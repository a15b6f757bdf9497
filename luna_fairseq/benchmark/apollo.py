"""``apollo``: one step of the Apollo optimizer beside torch's AdamW, on the parameters of fairseq's Transformer."""

import argparse
from functools import partial
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import torch
from torch import Tensor

from luna_fairseq.benchmark.heads import relative_rms
from luna_fairseq.benchmark.measure import Form, Job, Settings, compare_cases
from luna_fairseq.benchmark.models import (
    PRESETS,
    TRANSFORMER,
    Kind,
    add_size_options,
    build_translator,
    model_sizes,
)
from luna_fairseq.benchmark.options import select
from luna_fairseq.benchmark.report import Section
from luna_fairseq.errors import InputError
from luna_fairseq.optim.apollo import Apollo

HELP = "one optimizer step: Apollo beside torch's AdamW, on the parameters of fairseq's Transformer"
NOTES = (
    "optimizer.step() with random gradients that stay the same; float32. Apollo and AdamW (weight decay 0.01) with",
    "torch's defaults for the rest. adamw and apollo-single go through the parameters one by one, foreach takes many in",
    "one operation, fused is torch's one kernel for all, apollo is the default: foreach on a GPU, blocks on a CPU. Extra",
    "memory is that of the first step: the optimizer's state and what else it needs at a time. Before anything is timed,",
    "parameters after three steps were compared between the forms of each optimizer.",
)
STEPS = 3
TOLERANCE = 1e-4
# Small enough to leave the parameters where they are.
RATE = 1e-6
# The first of each kind is what the others must equal.
OPTIMIZERS: Dict[type, Dict[str, Mapping[str, Any]]] = {
    torch.optim.AdamW: {
        "adamw": {"foreach": False},
        "adamw-foreach": {"foreach": True},
        "adamw-fused": {"fused": True},
    },
    Apollo: {"apollo-single": {"foreach": False}, "apollo-foreach": {"foreach": True}, "apollo": {}},
}
PEERS = ("adamw", "adamw-foreach", "adamw-fused")
Sizes = Sequence[Tuple[int, ...]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the sub-command."""
    add_size_options(parser)


def run(args: argparse.Namespace, settings: Settings) -> Section:
    """Time a step of every optimizer. Raises InputError, before that, when forms of one disagree."""
    sizes = model_sizes(PRESETS[args.preset], positions=1024)
    model = build_translator(Kind(), sizes, args.dictionary_size)
    shapes = [tuple(p.shape) for p in model.parameters()]
    count = sum(p.numel() for p in model.parameters())
    forms, notes = {}, []
    for kind, variants in OPTIMIZERS.items():
        for name, options in variants.items():
            make = partial(kind, lr=RATE, **options)
            try:
                prepare(make, [(2, 3)], settings)()
            except (RuntimeError, TypeError) as error:
                notes.append(f"{name} is left out: {str(error).splitlines()[0]}")
            else:
                forms[name] = make
    check_optimizers(forms, settings)
    forms = select(forms, args.without)
    case = {"parameters": f"{count:,}"}
    timed = [
        Form(name, partial(prepare, make, shapes, settings), partial(prepare, make, [(2, 3)], settings))
        for name, make in forms.items()
    ]
    peers = [name for name in PEERS if name in forms]
    what = f"{TRANSFORMER}, {args.preset}, dictionary {args.dictionary_size}: {len(shapes)} tensors"
    return Section("apollo", (*NOTES, *notes, what), peers, compare_cases([(case, timed)], settings))


def prepare(make: Any, shapes: Sizes, settings: Settings) -> Job:
    """One step on parameters of those shapes."""
    return make(parameters(shapes, settings)).step


def parameters(shapes: Sizes, settings: Settings) -> List[Tensor]:
    """Random parameters with random gradients."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    made = []
    for shape in shapes:
        parameter, gradient = (torch.empty(shape, device=settings.device) for _ in range(2))
        parameter.normal_(std=0.02, generator=generator).requires_grad_()
        parameter.grad = gradient.normal_(std=0.01, generator=generator)
        made.append(parameter)
    return made


def check_optimizers(forms: Dict[str, Any], settings: Settings) -> None:
    """Raise InputError when two forms of one optimizer lead to different parameters."""
    for variants in OPTIMIZERS.values():
        here = [name for name in variants if name in forms]
        changes = {name: change_after_steps(forms[name], settings) for name in here}
        if not changes:
            continue
        reference, *others = changes
        for name in others:
            error = relative_rms(changes[name], changes[reference])
            if not error <= TOLERANCE:
                raise InputError(
                    f"{name} is not timed because it is wrong: after {STEPS} steps the change of its parameters "
                    f"differs from {reference}'s by {error:.1e} (relative RMS, {TOLERANCE:.0e} is allowed)"
                )


def change_after_steps(make: Any, settings: Settings) -> Tensor:
    """What some steps change, with other gradients in each, as one vector."""
    shapes = [(33, 7), (5,), (2, 3, 4)]
    values = parameters(shapes, settings)
    before = [p.detach().clone() for p in values]
    optimizer = make(values)
    for group in optimizer.param_groups:
        group["lr"] = 1e-3  # with less, rounding would be what is compared
    for i in range(STEPS):
        for p, other in zip(values, parameters(shapes, Settings(2, 1, settings.device, settings.seed + i))):
            p.grad = other.grad
        optimizer.step()
    return torch.cat([(p.detach() - b).flatten() for p, b in zip(values, before)])
