"""``luna-plan``: batch, memory, speed and days of a recipe on GPUs that one does not have yet, on paper.

A model of costs, not a measurement: operations and bytes of every layer against the datasheet of the GPU,
with the shares of it that are usual, the optimizer's state, activations, the gradients that DDP sends.
RECIPE is one of translation or masked language modelling (luna-recipes lists them); options of fairseq-train
that follow it override the recipe's.
"""

import argparse
import sys
import warnings
from argparse import Namespace
from typing import List, NamedTuple, Optional, Sequence, Tuple

import luna_fairseq.models  # noqa: F401  (registers the architectures)
from fairseq import options
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from luna_fairseq.commands.arguments import positive
from luna_fairseq.commands.count_parameters import PAPER_DICTIONARY_SIZE
from luna_fairseq.commands.recipes import Recipe, read_recipe
from luna_fairseq.commands.reporting import reported
from luna_fairseq.costs.gpus import GIB, GPUS, Gpu, find_gpu
from luna_fairseq.costs.memory import STATES, memory
from luna_fairseq.costs.model import Batch, Model, model_of, parameters
from luna_fairseq.costs.step import Step, step
from luna_fairseq.errors import InputError

PROGRAM = "luna-plan"
SENTENCE = 30  # tokens of a sentence of WMT'14, about
MASKED = 0.15  # of the tokens are predicted
TRUST = """How far to trust it: with one rate fitted, recorded training steps of translation on a CPU come
out within 3 per cent and their memory within 10, those of a small masked language model within 45
(docs/many_gpus.md). No GPU was measured: tokens/s may be a third or twice as many, memory 30 per cent more;
ratios between rows hold better. Sentences of one length are assumed; padding and a slow disk come on top."""


class Plan(NamedTuple):
    """One line of the table: lengths, batch, what it needs."""

    length: int
    batch: Batch
    bytes: float
    step: Step
    tokens: float
    days: Optional[float]


def build_parser() -> argparse.ArgumentParser:
    """The command line, without fairseq-train's options."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=(__doc__ or "").split("\n\n", 1)[1])
    add = parser.add_argument
    add("recipe", metavar="RECIPE", help="of translation or masked language modelling")
    add("--gpu", default="a100", metavar="NAME", help=f"one of {', '.join(GPUS)} (default: a100)")
    add("--nodes", type=positive, default=1, metavar="N", help="(default: 1)")
    add("--gpus-per-node", type=positive, default=8, metavar="N", help="(default: 8)")
    add("--length", type=positive, nargs="+", metavar="T", help="tokens of a sentence, several allowed "
        f"(default: {SENTENCE}, of masked language models the recipe's)")  # fmt: skip
    add("--dtype", choices=["half", "float32"], default="half", help="of the model (default: half)")
    add("--dictionary-size", type=positive, default=PAPER_DICTIONARY_SIZE, metavar="N",
        help="(default: %(default)s)")  # fmt: skip
    return parser


def resolve(recipe: Recipe, given: Sequence[str]) -> Tuple[Namespace, str]:
    """The recipe's options with the architecture's own, and the registered model.

    Raises:
        InputError: an optimizer whose state is not counted
    """
    words = [*recipe.words(), *given]
    # Its parsers print usage and warn of hydra's age.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = options.parse_args_and_arch(options.get_training_parser(), ["data", *words])
    if args.optimizer not in STATES:
        raise InputError(
            f"--optimizer {args.optimizer} is not counted; those counted are {', '.join(STATES)}"
        )
    return args, ARCH_MODEL_NAME_REGISTRY.get(args.arch, args.arch)


def tokens_of_update(recipe: Recipe, args: Namespace, length: int) -> float:
    """Tokens of all GPUs of the recipe in an update."""
    each = args.max_tokens or (args.batch_size or 1) * length
    if args.max_tokens and args.batch_size:
        each = min(each, args.batch_size * length)
    return float(recipe.gpus * each * args.update_freq[0])


def fit(model: Model, wanted: float, length: int, gpu: Gpu, dtype: str, optimizer: str) -> Tuple[Batch, int]:
    """The largest batch of a GPU, of ``wanted`` tokens in so few passes that it fits.

    Raises:
        InputError: not even one sentence fits; the message says what to lower
    """
    predicted = 1.0 if model.decoder is not None else MASKED
    sentences = max(1.0, wanted / length)
    passes = 1
    while True:
        batch = Batch(max(1.0, sentences / passes), length, predicted)
        if sum(memory(model, batch, dtype, optimizer).values()) <= gpu.memory:
            return batch, passes
        if batch.sentences <= 1:
            raise InputError(too_long(model, batch, gpu, dtype, optimizer))
        passes += 1


def too_long(model: Model, batch: Batch, gpu: Gpu, dtype: str, optimizer: str) -> str:
    """What to lower."""
    needed = memory(model, batch, dtype, optimizer)
    what = (
        f"one sequence of {batch.length:,} tokens needs {sum(needed.values()) / GIB:.0f} GiB, the {gpu.name} "
    )
    what += f"has {gpu.memory / GIB:.0f}"
    length = batch.length
    while length > 1:
        length //= 2
        if sum(memory(model, batch_of_one(batch, length), dtype, optimizer).values()) <= gpu.memory:
            more = "" if model.checkpoint else ", or add --checkpoint-activations"
            return f"{what}: lower --length to {length:,}{more}"
    return (
        f"{what}, and {needed['parameters, gradients, optimizer'] / GIB:.0f} go to the parameters: lower "
        + ("--encoder-embed-dim or --encoder-layers, or take --dtype half")
    )


def batch_of_one(batch: Batch, length: int) -> Batch:
    """One sentence of another length."""
    return Batch(1.0, length, batch.predicted)


def plan(recipe: Recipe, given: Sequence[str], words: Namespace, length: Optional[int] = None) -> Plan:
    """What a recipe needs at a length (default: its own).

    Args:
        recipe: whose batch and updates count
        given: options of fairseq-train that override it
        words: of ``luna-plan``
        length: tokens of a sentence
    """
    gpu = find_gpu(words.gpu)
    args, kind = resolve(recipe, given)
    model = model_of(args, kind, words.dictionary_size)
    length = length or (args.tokens_per_sample if model.decoder is None else SENTENCE)
    dtype = gpu.half if words.dtype == "half" else "float32"
    count = words.nodes * words.gpus_per_node
    wanted = tokens_of_update(recipe, args, length) / count
    batch, passes = fit(model, wanted, length, gpu, dtype, args.optimizer)
    found = step(model, batch, gpu, dtype, args.optimizer, passes, words.nodes, words.gpus_per_node)
    tokens = batch.tokens * passes * count
    days = args.max_update * found.seconds / 86400 if args.max_update else None
    needed = sum(memory(model, batch, dtype, args.optimizer).values())
    return Plan(length, batch, needed, found, tokens, days)


def run(words: Namespace, given: List[str]) -> None:
    """Print the table."""
    recipe, gpu = read_recipe(words.recipe), find_gpu(words.gpu)
    plans = [plan(recipe, given, words, length) for length in words.length or [None]]
    args, kind = resolve(recipe, given)
    model = model_of(args, kind, words.dictionary_size)
    print(f"{recipe.name} on {words.nodes} x {words.gpus_per_node} {gpu.name}: "
          f"{parameters(model) / 1e6:.1f}M parameters, {args.optimizer}, "
          f"{gpu.half if words.dtype == 'half' else 'float32'}, {args.max_update:,} updates")  # fmt: skip
    print(f"{'length':>7} {'sentences x passes':>20} {'tokens/update':>14} {'GiB':>6} {'ms/update':>10} "
          f"{'tokens/s':>12} {'days':>7}  bound by")  # fmt: skip
    for one in plans:
        batch = f"{one.batch.sentences:,.0f} x {one.step.passes}"
        days = "-" if one.days is None else f"{one.days:.1f}"
        print(f"{one.length:7,} {batch:>20} {one.tokens:14,.0f} {one.bytes / GIB:6.1f} "
              f"{1000 * one.step.seconds:10,.0f} {one.tokens / one.step.seconds:12,.0f} {days:>7}  "
              f"{one.step.bound}")  # fmt: skip
    print(" ".join(TRUST.split()))


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Console entry point: 0, or 1 after one line on stderr."""
    words, given = build_parser().parse_known_args(argv)
    return reported(PROGRAM, lambda: run(words, given))


if __name__ == "__main__":
    sys.exit(main())
