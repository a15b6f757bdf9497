"""``luna-plan``: batch, memory, speed and days of a recipe on GPUs that one does not have yet, on paper.

The model of the recipe is built on torch's meta device and does a training step without numbers; every
operation takes the time of its products or of its bytes at the shares of the GPU's rates that are usual.
RECIPE is one of translation or masked language modelling (luna-recipes lists them); options of fairseq-train
that follow it override the recipe's.
"""

import importlib.util
import math
import sys
import warnings
from argparse import Namespace
from contextlib import nullcontext
from functools import partial
from typing import ContextManager, Dict, List, NamedTuple, Optional, Sequence

import torch

import luna_fairseq.models  # noqa: F401  (registers what a checkpoint may name)
from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY
from luna_fairseq.benchmark.counting import Operation, Step, count_step
from luna_fairseq.benchmark.gpus import GIB, GPUS
from luna_fairseq.benchmark.kernels import Launch, launching_nothing
from luna_fairseq.benchmark.page import table
from luna_fairseq.benchmark.task import BatchSize
from luna_fairseq.benchmark.train import Train
from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.count_parameters import PAPER_DICTIONARY_SIZE
from luna_fairseq.commands.recipes import read_recipe
from luna_fairseq.commands.reporting import offer_quiet, reported
from luna_fairseq.errors import InputError
from luna_fairseq.progress import progress, quietly

PROGRAM = "luna-plan"
SENTENCE = 30  # tokens of a sentence of WMT'14, about
KINDS = {"translation": "translate", "masked_lm": "masked-lm"}
# Bytes that an optimizer keeps for a parameter, and that its step reads and writes.
KEPT, MOVED = {"adam": 8, "apollo": 12}, {"adam": 28, "apollo": 60}
# Seconds that Python takes to launch an operation; part of the backward pass behind which gradients are sent.
LAUNCH, HIDDEN = 8e-6, 0.5
CUDA_ITSELF = 1.5e9
TRUST = """How far to trust it: three public figures of Transformer-base on V100, to which its shares were
fitted, come out within 15 per cent, recorded steps on two CPU cores within 8, their memory within 20
(docs/many_gpus.md). On other GPUs tokens/s may be half or twice as many. Sentences of one length are assumed;
padding and a slow disk come on top."""


class Plan(NamedTuple):
    """An update: the batch of one GPU and one pass, passes, bytes that a GPU needs, tokens of all GPUs,
    seconds by what takes them, and the model's parameters."""

    batch: BatchSize
    passes: int
    bytes: float
    tokens: int
    seconds: Dict[str, float]
    parameters: int


def build_parser() -> CommandParser:
    """The command line, without fairseq-train's options."""
    parser = CommandParser(PROGRAM, __doc__, usage="%(prog)s RECIPE [options] [fairseq-train options]")
    add, of_length = parser.add_argument, f"{SENTENCE}, of masked language models the recipe's"
    add("recipe", metavar="RECIPE", help="of translation or masked language modelling")
    add("--gpu", default="a100", choices=GPUS, type=str.lower, help="(default: a100)")
    parser.count("--nodes", 1, "machines")
    parser.count("--gpus-per-node", 8, "GPUs of a machine")
    parser.count("--length", None, f"tokens of a sentence (default: {of_length})", nargs="+")
    add("--dtype", choices=["half", "float32"], default="half", help="of the model (default: half)")
    parser.count("--dictionary-size", PAPER_DICTIONARY_SIZE, "entries of the dictionary")
    offer_quiet(parser)
    return parser


def resolve(words: Namespace, given: Sequence[str]) -> Namespace:
    """Options of fairseq-train, and those of ``luna-plan`` with recipe, GPU and type in the place of their
    names. Raises InputError for what is not counted."""
    recipe, gpu = read_recipe(words.recipe), GPUS[words.gpu]
    with warnings.catch_warnings():  # its parsers warn of hydra's age
        warnings.simplefilter("ignore")
        args = options.parse_args_and_arch(options.get_training_parser(), ["data", *recipe.words(), *given])
    for option, known in (("task", KINDS), ("optimizer", KEPT)):
        name = getattr(args, option)
        if name not in known:
            raise InputError(f"--{option} {name} is not counted; those counted are {', '.join(known)}")
    dtype = gpu.half if words.dtype == "half" else torch.float32
    return Namespace(**{**vars(args), **vars(words), "recipe": recipe, "gpu": gpu, "dtype": dtype})


def count(args: Namespace, batch: BatchSize) -> Step:
    """The training step of the model that resolved options build; causal attention in the fused kernels where
    the GPU has them."""
    args = Namespace(**vars(args))
    for limit in ("max_source_positions", "max_target_positions", "max_positions", "tokens_per_sample"):
        setattr(args, limit, max(batch.T + 2, getattr(args, limit, None) or 0))
    known = {"task": KINDS[args.task], "dictionary_size": args.dictionary_size}
    task = Train(Namespace(**known, device="meta"))
    make = partial(ARCH_MODEL_REGISTRY[args.arch].build_model, args, task.fairseq_task(batch.T))
    noting: ContextManager[List[Launch]] = nullcontext([])
    if args.gpu.capability >= 80 and importlib.util.find_spec("triton") is not None:
        noting = launching_nothing(args.gpu.capability, compiling=False)
    with noting as launches:
        found = count_step(make, lambda model: task.loss(model, batch)(), args.dtype)
    fused = (Operation(0, launch.bytes, args.dtype) for launch in launches)
    return found._replace(operations=[*found.operations, *fused])


def plan(args: Namespace, length: Optional[int] = None) -> Plan:
    """What resolved options need at a length (default: the recipe's). Raises InputError when not even one
    sentence fits; the message says what to lower."""
    gpu, item = args.gpu, args.dtype.itemsize
    length = length or (SENTENCE if args.task == "translation" else args.tokens_per_sample)
    each = min(args.max_tokens or math.inf, (args.batch_size or math.inf) * length)
    gpus, tokens = args.nodes * args.gpus_per_node, length if each == math.inf else each
    wanted = max(1, round(args.recipe.gpus * tokens * args.update_freq[0] / gpus / length))
    passes = 1
    while True:
        batch = BatchSize(math.ceil(wanted / passes), length)
        step = count(args, batch)
        # Parameters and gradients, with a half type those of the optimizer in float32, and its state.
        of_parameter = 2 * item + KEPT[args.optimizer] + (8 if item < 4 else 0)
        # What is kept for the backward pass, and two tensors of the largest size at work.
        of_batch = step.kept + 2 * step.largest
        fixed = CUDA_ITSELF + step.parameters * of_parameter
        needed, left = fixed + of_batch, gpu.memory - fixed
        if of_batch <= left:
            of_all = batch.sentences * length * passes * gpus
            return Plan(batch, passes, needed, of_all, seconds(step, args, passes), step.parameters)
        if left <= 0 or batch.sentences == 1:
            raise InputError(too_large(batch, needed, left / of_batch, args))
        passes = max(passes + 1, math.ceil(passes * of_batch / left))


def too_large(batch: BatchSize, needed: float, part: float, args: Namespace) -> str:
    """What to lower, where ``part`` of the activations fits."""
    what = f"one sequence of {batch.T:,} tokens needs {needed / GIB:.0f} GiB"
    what += f", the {args.gpu.name} has {args.gpu.memory / GIB:.0f}"
    if part * batch.T < 1:
        return f"{what}, and most go to the parameters: lower --encoder-embed-dim or --encoder-layers"
    more = "" if getattr(args, "checkpoint_activations", False) else ", or add --checkpoint-activations"
    return f"{what}: lower --length to {2 ** int(math.log2(part * batch.T)):,}{more}"


def seconds(step: Step, args: Namespace, passes: int) -> Dict[str, float]:
    """Of an update, by what takes them."""
    gpu, item = args.gpu, args.dtype.itemsize
    bandwidth = gpu.reached["bytes"] * gpu.bandwidth
    found = {"products": 0.0, "bytes": 0.0}
    for operation in step.operations:
        kind = "float32" if operation.dtype == torch.float32 else "half"
        of_products = operation.flops / (gpu.reached[kind] * gpu.flops[kind])
        of_bytes = operation.bytes / bandwidth
        found["products" if of_products > of_bytes else "bytes"] += passes * max(of_products, of_bytes)
    work = sum(found.values())
    found["launches"] = max(0.0, passes * len(step.operations) * LAUNCH - work) if gpu.capability else 0.0
    found["optimizer"] = step.parameters * (MOVED[args.optimizer] + 3 * item) / bandwidth
    nodes, gpus, sent = args.nodes, args.gpus_per_node, 2 * step.parameters * item
    ring = sent * ((gpus - 1) / gpus / gpu.link + (nodes - 1) / nodes / gpu.network)
    found["network"] = max(0.0, ring - HIDDEN * work / passes * 2 / 3)
    return found


def run(words: Namespace, given: List[str]) -> None:
    """Print the table."""
    args, rows = resolve(words, given), []
    try:
        for length in progress(args.length or [None], PROGRAM, "lengths"):
            one = plan(args, length)
            total = sum(one.seconds.values())
            rows.append({
                "length": one.batch.T, "sentences x passes": f"{one.batch.sentences:,} x {one.passes}",
                "tokens/update": one.tokens, "GiB": f"{one.bytes / GIB:.1f}",
                "ms/update": round(1000 * total), "tokens/s": round(one.tokens / total),
                "days": f"{args.max_update * total / 86400:.1f}" if args.max_update else "-",
                "most of it": max(one.seconds, key=lambda what: one.seconds[what]),
            })  # fmt: skip
    finally:  # those that fit, before the error of one that does not
        if rows:
            machines = f"{args.nodes} x {args.gpus_per_node} {args.gpu.name}"
            model = f"{one.parameters / 1e6:.1f}M parameters, {args.optimizer}, {str(args.dtype)[6:]}"
            print(f"{args.recipe.name} on {machines}: {model}, {args.max_update:,} updates")
            print(table(rows), " ".join(TRUST.split()), sep="\n")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Console entry point: 0, or 1 after one line on stderr."""
    words, given = build_parser().parse_known_args(argv)
    with quietly(words.quiet):
        return reported(PROGRAM, lambda: run(words, given))


if __name__ == "__main__":
    sys.exit(main())
