"""Base class of the benchmarks, and functions that select and check the implementations to measure.

A variant is one implementation of a task. A case is a setting in which all variants are measured.
"""

import argparse
import re
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, ClassVar, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from luna_fairseq.commands.arguments import positive
from luna_fairseq.errors import InputError

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}
Job = Callable[[], Any]
# Settings in which all variants of a task are compared, such as {"T": 512}. The names become columns of the
# printed table.
Case = Dict[str, Any]
# Measurements of one variant in one case, in JSON types: seconds, bytes, ratios of speeds.
Record = Dict[str, Any]


# Help texts of the options that take numbers.
NUMBERS = {
    "lengths": "sequence lengths in tokens",
    "batch": "number of sentences in a batch",
    "beam": "beam size",
    "heads": "number of attention heads",
    "head_dim": "width of an attention head",
    "projection_length": "lengths l of Luna's packed sequence P",
    "max_naive_length": (
        "longest sequence for rows that store a matrix for every position (default: 1024 on a CPU, 4096 on a "
        "GPU)"
    ),
}


@dataclass(frozen=True)
class Variant:
    """One implementation of a task, such as one implementation of attention.

    Attributes:
        make: function or class that implements the variant. Its arguments depend on the task.
        equals: name of the variant that computes the reference results. "" if there is none.
        limited: True if memory is quadratic in the sequence length. Such variants are only measured up to
            ``--max-naive-length``.
        skip_reason: function ``(args, case)`` that returns why the variant cannot run in a case, or "" if it
            can.
        peer: True to print the speedup of every variant over this one.
        optional: True to measure the variant only if ``--with`` selects it.
    """

    make: Callable[..., Any]
    equals: str = ""
    limited: bool = False
    skip_reason: Callable[..., str] = lambda args, case: ""
    peer: bool = False
    optional: bool = False


class Task:
    """Base class of benchmarks. A benchmark compares several implementations ("variants") of one task.

    Attributes:
        notes: description for ``--help`` and the output. Paragraphs are separated by empty lines. The first
            paragraph describes the task in one sentence.
        example: options of the example in ``--help``.
        options: dictionary from option, such as "--batch", to arguments for ``add_argument``.
        table: dictionary from name to variant.
        rate: unit of the printed throughput, "tokens" or "sentences", or "" to print none.
    """

    notes: ClassVar[str]
    example: ClassVar[str]
    options: ClassVar[Dict[str, Any]] = {}
    table: ClassVar[Dict[str, Variant]]
    rate: ClassVar[str] = ""

    def __init__(self, args: argparse.Namespace):
        self.args = args

    @classmethod
    def paragraphs(cls) -> List[str]:
        """Return the paragraphs of :attr:`notes`, each as one line."""
        return [" ".join(paragraph.split()) for paragraph in cls.notes.split("\n\n")]

    def variants(self) -> Dict[str, Any]:
        """Return the implementations to compare, keyed by name, in the order of the printed table."""
        return self.table

    def cases(self) -> List[Case]:
        """Return the settings to benchmark, such as ``[{"T": 512}, {"T": 1024}]`` for two lengths."""
        raise NotImplementedError

    def skip_reason(self, variant: Any, case: Case) -> str:
        """Return why an implementation cannot run in a setting, or "" if it can."""
        return variant.skip_reason(self.args, case)

    def check(self, variant: Any) -> Optional[float]:
        """Compare the results of an implementation with reference results, before anything is timed.

        Return the error divided by the tolerance, at most 1, or None if there is nothing to compare with.
        Raise InputError for a larger error.
        """
        raise NotImplementedError

    def prepare_job(self, variant: Any, case: Case) -> Job:
        """Prepare the inputs of an implementation in a setting, and return the function to time."""
        raise NotImplementedError

    def describe(self) -> str:
        """Return the options shared by all measurements as one line, such as "batch 4, heads 8"."""
        values = {option[2:]: getattr(self.args, option[2:].replace("-", "_")) for option in self.options}
        return ", ".join(f"{name} {x}" for name, x in values.items() if x and not isinstance(x, list))


@dataclass
class Section:
    """Results of one benchmark: a section of the printed output and of the JSON file.

    A variant is one implementation that is measured. A case is a setting, such as a sequence length.

    Attributes:
        name: name of the benchmark.
        rate: unit of the printed throughput, "tokens" or "sentences", or "" to print none.
        notes: lines that describe the measurement.
        peers: names of the variants that get a speedup column.
        checks: largest error of each variant, divided by the tolerance. None if nothing was compared.
        failed: dictionary from variant to error message, for variants that could not be measured.
        running: name of the variant that is being measured. If the process dies, this variant is blamed.
        results: measurements, one per case and variant.
        profiles: counts of operations and calls, with ``--profile``.
        changed: callable without arguments, called when another variant starts.
    """

    name: str
    rate: str = ""
    notes: List[str] = field(default_factory=list)
    peers: List[str] = field(default_factory=list)
    checks: Dict[str, Optional[float]] = field(default_factory=dict)
    failed: Dict[str, str] = field(default_factory=dict)
    running: str = ""
    results: List[Record] = field(default_factory=list)
    profiles: List[Record] = field(default_factory=list)
    changed: Callable[[], Any] = lambda: None

    def set_running(self, name: str) -> None:
        """Store the name of the implementation that is being measured ("" for none), and call ``changed``."""
        self.running = name
        self.changed()

    @contextmanager
    def recording_errors(self, name: str) -> Iterator[None]:
        """Context manager that records an exception in ``failed[name]`` instead of raising it.

        CUDA errors other than out of memory are raised, because they make the GPU unusable.
        """
        self.set_running(name)
        try:
            yield
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            self.failed.setdefault(name, "out of memory. Use smaller sizes")
        except Exception as error:  # compilers raise errors of many types on new devices
            if "CUDA error" in str(error):
                raise
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            self.failed.setdefault(name, (kind + str(error)).split("\n")[0][:300])


def plan_jobs(task: Task, section: Section) -> List[Tuple[Case, Dict[str, Callable[[], Job]]]]:
    """Check the results of all implementations ("variants") of a task, and list the jobs to measure.

    Return pairs (setting, jobs). ``jobs`` maps the name of each variant to a function that prepares its job.
    Variants with wrong results are omitted, and listed in ``section.failed``. The fields ``notes``,
    ``checks`` and ``peers`` of ``section`` are set too.
    """
    variants = select(task.variants(), task.args.with_, task.args.without)
    # Names of the variants skipped in some cases, keyed by reason. A dictionary preserves their order.
    skipped: Dict[str, Dict[str, None]] = {}
    cases = []
    for case in task.cases():
        reasons = {name: task.skip_reason(variant, case) for name, variant in variants.items()}
        for name in filter(reasons.get, reasons):
            skipped.setdefault(reasons[name], {})[name] = None
        cases.append((case, [name for name in variants if not reasons[name]]))
    skip_notes = [f"skipped: {', '.join(names)} ({reason})." for reason, names in skipped.items()]
    description = [line for paragraph in task.paragraphs() for line in textwrap.wrap(paragraph, 118)]
    section.notes = [*description, *skip_notes, task.describe()]
    possible = [name for name in variants if any(name in names for _, names in cases)]
    if not possible:
        raise InputError(" ".join(["no row can be measured;", *skip_notes]))
    for name in possible:
        with section.recording_errors(name):
            section.checks[name] = task.check(variants[name])
    correct = [name for name in possible if name not in section.failed]
    section.peers = [name for name in correct if variants[name].peer]
    jobs: List[Tuple[Case, Dict[str, Callable[[], Job]]]] = []
    for case, names in cases:
        to_measure = [name for name in correct if name in names]
        jobs.append((case, {name: partial(task.prepare_job, variants[name], case) for name in to_measure}))
    return jobs


def select(variants: Dict[str, Any], wanted: Sequence[str], unwanted: Sequence[str]) -> Dict[str, Any]:
    """Return the implementations to measure, given the names in ``--with`` and ``--without``."""
    for option, names in (("--with", wanted), ("--without", unwanted)):
        for name in names:
            if name not in variants:
                raise InputError(f"{option} {name}: no row has this name. Choose from {', '.join(variants)}")
    always = {name for name, variant in variants.items() if not variant.optional}
    selected = always.union(wanted).difference(unwanted)
    return {name: variant for name, variant in variants.items() if name in selected}


def require_equal(what: str, actual: Tensor, expected: Tensor, tolerance: float = 1e-4) -> float:
    """Return the error of ``actual``, divided by the tolerance. Raise InputError if the ratio exceeds 1.

    The error is the RMS of the difference, divided by the RMS of the expected values unless these are nearly
    0. ``what`` begins the error message, such as "its output differs from the naive one".
    """
    scale, least = expected.double().norm(), expected.numel() ** 0.5
    difference = (actual.double() - expected.double()).norm()
    error = (difference / (scale if scale > 1e-7 * least else least)).item()
    if not error <= tolerance:
        raise InputError(f"{what} by {error:.1e} (relative RMS error; at most {tolerance:.0e} is allowed)")
    return error / tolerance


class BatchSize(NamedTuple):
    """Size of a batch: number of sentences, and length T of each sentence in tokens."""

    sentences: int
    T: int

    @classmethod
    def parse(cls, text: str) -> "BatchSize":
        """Parse a batch size such as "32x30": 32 sentences of 30 tokens."""
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not SENTENCESxTOKENS, such as 32x30")
        return cls(*map(int, match.groups()))


def number_options(**options: Any) -> Dict[str, Any]:
    """Return ``add_argument`` arguments for options that take positive integers, keyed by option.

    ``options`` gives the default of each option. If the default is a list, the option takes several numbers.
    NUMBERS contains the descriptions for ``--help``.
    """
    found: Dict[str, Any] = {}
    for name, default in options.items():
        help_text = NUMBERS[name]
        if default is not None:
            help_text += f" (default: {str(default).strip('[]').replace(',', '')})"
        many = "+" if isinstance(default, list) else None
        option = {"type": positive, "default": default, "metavar": "N", "nargs": many, "help": help_text}
        found[f"--{name.replace('_', '-')}"] = option
    return found


def choice_option(*names: str, help: str) -> Dict[str, Any]:
    """Return ``add_argument`` arguments for an option with choices ``names``. The first is the default."""
    return {"choices": names, "default": names[0], "help": f"{help} (default: {names[0]})"}
