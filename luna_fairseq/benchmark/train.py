"""``train``: training speed of whole models, Luna's beside fairseq's of the same size."""

import argparse
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

from luna_fairseq.benchmark import classify, masked_lm, translate
from luna_fairseq.benchmark.fused_softmax import require_sdpa
from luna_fairseq.benchmark.heads import relative_rms
from luna_fairseq.benchmark.measure import Case, Form, Job, Settings, compare_cases
from luna_fairseq.benchmark.models import (
    TINY,
    Kind,
    add_projection_length,
    add_size_options,
    describe,
)
from luna_fairseq.benchmark.options import MODEL_DTYPES, BatchSize, batch_size, select
from luna_fairseq.benchmark.report import Section
from luna_fairseq.errors import InputError

HELP = "training step of a whole model: Luna beside fairseq's Transformer or RoBERTa"
# Modules with kinds, build, make_loss, NOTES, PEERS and PRESETS, and the defaults DICTIONARY_SIZE and BATCHES.
TASKS: Dict[str, Any] = {"translate": translate, "masked-lm": masked_lm, "classify": classify}
# Sentences of different length, for the comparison before anything is timed.
CHECKED_LENGTHS = (11, 7, 2)
TOLERANCE = 1e-4


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the sub-command."""
    parser.add_argument(
        "--task",
        choices=list(TASKS),
        default="translate",
        help="encoder-decoders, masked language models, or classifiers of bytes (default: translate)",
    )
    add_size_options(parser)
    parser.set_defaults(preset=None, dictionary_size=None)
    add_run_options(parser)


def add_run_options(
    parser: argparse.ArgumentParser,
    batches: Optional[Sequence[BatchSize]] = None,
    projection_lengths: Sequence[int] = (16,),
) -> None:
    """``--batch``, ``--projection-length`` and ``--dtype``."""
    add = parser.add_argument
    default = " ".join(map(str, batches)) if batches else "32x30, masked-lm 1x512, classify 1x1024"
    add(
        "--batch",
        type=batch_size,
        nargs="+",
        default=batches,
        metavar="NxT",
        help=f"sentences x tokens in each, several allowed (default: {default})",
    )
    add_projection_length(parser, projection_lengths)
    add("--dtype", choices=list(MODEL_DTYPES), default="float32", help="of the parameters (default: float32)")


def run(args: argparse.Namespace, settings: Settings) -> Section:
    """Check that forms of one model agree, then time the training step of every model at every batch size."""
    task, preset = TASKS[args.task], sizes_of(args)
    size = args.dictionary_size or task.DICTIONARY_SIZE
    kinds = select(task.kinds(args.projection_length), args.without)
    for fused in (name for name, kind in kinds.items() if kind.attention == "fused"):
        require_sdpa(f"leave out its peer with --without {fused}")
    for name, kind in kinds.items():
        check_model(name, kind, args.task, preset, size, settings)
    cases: List[Case] = []
    tokens: List[int] = []
    for batch in args.batch or task.BATCHES:
        forms = [
            make_form(name, kind, args.task, preset, size, batch, args.dtype, settings) for name, kind in kinds.items()
        ]
        cases.append(({"sentences": batch.sentences, "T": batch.tokens}, forms))
        tokens += [batch.sentences * batch.tokens] * len(forms)
    peers = [name for name in task.PEERS if name in kinds]
    notes = (*task.NOTES, f"{args.task}: {describe(preset, size)}, {args.dtype}")
    return Section("train", notes, peers, compare_cases(cases, settings), "T", (), "tokens", tokens)


def sizes_of(args: argparse.Namespace) -> Dict[str, int]:
    """Sizes of the models. Raises InputError for a ``--preset`` that the task has not."""
    presets = TASKS[args.task].PRESETS
    name = args.preset or "base"
    if name not in presets:
        raise InputError(f"--preset {name}: --task {args.task} has only {', '.join(presets)}")
    return presets[name]


def make_form(
    name: str,
    kind: Kind,
    task: str,
    preset: Dict[str, int],
    size: int,
    batch: BatchSize,
    dtype: str,
    settings: Settings,
) -> Form:
    """The training step of the model, warmed up with a tiny one of its kind."""
    return Form(
        name,
        prepare=partial(prepare, kind, task, preset, size, batch, dtype, settings),
        warm_up=partial(prepare, kind, task, TINY, 8, BatchSize(1, 4), dtype, settings),
    )


def prepare(
    kind: Kind, task: str, preset: Dict[str, int], size: int, batch: BatchSize, dtype: str, settings: Settings
) -> Job:
    """One training step of the model."""
    torch.manual_seed(settings.seed)
    model = TASKS[task].build(kind, preset, size, batch).to(settings.device, MODEL_DTYPES[dtype])
    torch.manual_seed(settings.seed)  # the same batch for every model
    return partial(step, model, TASKS[task].make_loss(model, size, batch, settings.device))


def step(model: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> None:
    """Forward, loss, backward; the gradients are dropped, as an optimizer's step would have used them."""
    loss().backward()
    model.zero_grad(set_to_none=True)


def check_model(
    name: str, kind: Kind, task: str, preset: Dict[str, int], size: int, settings: Settings
) -> None:
    """Raise InputError when loss or gradients differ from those of the model's definition with the same parameters."""
    pair = (kind, kind.definition())
    actual, expected = (loss_and_gradients(k, task, preset, size, settings) for k in pair)
    for what, ours, theirs in zip(("loss", "gradient"), actual, expected):
        error = relative_rms(ours, theirs)
        if not error <= TOLERANCE:
            raise InputError(
                f"{name} is not timed because it is wrong: its {what} differs from that of the written-out model by "
                f"{error:.1e} (relative RMS, {TOLERANCE:.0e} is allowed)"
            )


def loss_and_gradients(
    kind: Kind, task: str, preset: Dict[str, int], size: int, settings: Settings
) -> List[torch.Tensor]:
    """Of a batch with padding, without dropout, in float32; the gradients of all parameters as one vector."""
    batch = BatchSize(len(CHECKED_LENGTHS), CHECKED_LENGTHS[0])
    torch.manual_seed(settings.seed)
    model = TASKS[task].build(kind, preset, size, batch, dropout=0.0).to(settings.device)
    torch.manual_seed(settings.seed)
    loss = TASKS[task].make_loss(model, size, batch, settings.device, CHECKED_LENGTHS)()
    loss.backward()
    # Sorted, because a parameter that moved to another module comes at another place.
    parameters = sorted(model.named_parameters())
    return [loss.detach(), torch.cat([p.grad.flatten() for _, p in parameters if p.grad is not None])]
