"""Base class of the benchmarks, and functions that select the implementations to measure and check them."""

import argparse
import re
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, ClassVar, Dict, Iterator, List, NamedTuple, Sequence, Tuple

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
        equals: name of the variant that computes the reference results (default: "", none).
        limited: True if memory is quadratic in the sequence length. Such variants are only measured up to
            ``--max-naive-length`` (default: False).
        skip_reason: function ``(args, case)`` that returns the reason why the variant cannot run in a case,
            or "" if it can (default: "" for every case).
        peer: True to print the speedup of every variant over this one (default: False).
        optional: True to measure the variant only if ``--with`` names it (default: False).
    """

    make: Callable[..., Any]
    equals: str = ""
    limited: bool = False
    skip_reason: Callable[..., str] = lambda args, case: ""
    peer: bool = False
    optional: bool = False


class Task:
    """Base class of benchmarks. Each compares several implementations of one task.

    The implementations are called variants. A case is a setting in which all variants are measured, such as a
    sequence length.

    Args:
        args: parsed command-line options.

    Attributes:
        notes: description for ``--help`` and the output. Paragraphs are separated by empty lines. The first
            paragraph describes the task in one sentence.
        example: options of the example in ``--help``.
        options: arguments for ``add_argument``, keyed by option name, such as "--batch".
        table: variants, keyed by name.
        rate: "tokens" or "sentences" to print their number per second; "" for no rate (default).
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
        """Return the available variants, keyed by name, in the order of the printed table."""
        return self.table

    def cases(self) -> List[Case]:
        """Return the settings in which all variants are measured, such as ``[{"T": 512}, {"T": 1024}]``."""
        raise NotImplementedError

    def skip_reason(self, variant: Any, case: Case) -> str:
        """Return the reason a variant cannot run in a case, or "" if it can.

        Args:
            variant: implementation to measure, a value of :meth:`variants`.
            case: measurement settings, such as ``{"T": 512}``.

        Returns:
            "", or a clause such as "torch 1.13.1 has no scaled_dot_product_attention".
        """
        return variant.skip_reason(self.args, case)

    def check(self, variant: Any) -> float:
        """Compare the results of a variant with reference results, before anything is timed.

        Args:
            variant: implementation to check, a value of :meth:`variants`.

        Returns:
            The largest error divided by the tolerance.

        Raises:
            InputError: An error exceeds the tolerance.
        """
        raise NotImplementedError

    def prepare_job(self, variant: Any, case: Case) -> Job:
        """Prepare inputs and models, and return the function to time.

        Args:
            variant: implementation to measure, a value of :meth:`variants`.
            case: measurement settings, such as ``{"T": 512}``.

        Returns:
            A callable that takes no arguments.
        """
        raise NotImplementedError

    def describe(self) -> str:
        """Format the options shared by all cases as one line, such as "batch 4, heads 8"."""
        values = {option[2:]: getattr(self.args, option[2:].replace("-", "_")) for option in self.options}
        return ", ".join(f"{name} {x}" for name, x in values.items() if x and not isinstance(x, list))


@dataclass
class Section:
    """Results of one task: a section of the printed page and of the JSON file.

    Attributes:
        name: name of the task.
        rate: "tokens" or "sentences" to print their number per second; "" for no rate.
        notes: lines that describe the measurement.
        peers: names of the variants that get a speedup column.
        checks: largest error divided by the tolerance, keyed by variant name.
        failed: error messages of variants that could not be measured, keyed by variant name.
        running: name of the variant that is being measured. If the process dies, this variant is the cause.
        results: measurements.
        profiles: counts of operations and calls, with ``--profile``.
        changed: callable without arguments, called when another variant starts.
    """

    name: str
    rate: str = ""
    notes: List[str] = field(default_factory=list)
    peers: List[str] = field(default_factory=list)
    checks: Dict[str, float] = field(default_factory=dict)
    failed: Dict[str, str] = field(default_factory=dict)
    running: str = ""
    results: List[Record] = field(default_factory=list)
    profiles: List[Record] = field(default_factory=list)
    changed: Callable[[], Any] = lambda: None

    def set_running(self, name: str) -> None:
        """Record which variant is being measured, and call ``changed``.

        Args:
            name: name of the variant, or "" for none.
        """
        self.running = name
        self.changed()

    @contextmanager
    def recording_errors(self, name: str) -> Iterator[None]:
        """Context manager that records an exception in ``failed`` instead of raising it.

        CUDA errors are raised, because they make the GPU unusable for all other variants.

        Args:
            name: name of the variant measured in the context.
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
    """Check the results of all variants of a task, and list the jobs to measure.

    Args:
        task: task to measure.
        section: results of the task. Its notes, peers, checks and failures are filled in place.

    Returns:
        A list of pairs: a case, and functions keyed by variant name. Each function prepares the job that
        measures this variant in the case.

    Raises:
        InputError: ``--with`` or ``--without`` names an unknown variant, or no variant remains to be
            measured.
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
    """Select the variants to measure, as given by ``--with`` and ``--without``.

    Args:
        variants: all variants, keyed by name.
        wanted: names of optional variants to include.
        unwanted: names of variants to exclude.

    Returns:
        The selected variants, keyed by name, in the order of ``variants``.

    Raises:
        InputError: A name is unknown.
    """
    for option, names in (("--with", wanted), ("--without", unwanted)):
        for name in names:
            if name not in variants:
                raise InputError(f"{option} {name}: no row has this name. Choose from {', '.join(variants)}")
    always = {name for name, variant in variants.items() if not variant.optional}
    selected = always.union(wanted).difference(unwanted)
    return {name: variant for name, variant in variants.items() if name in selected}


def require_equal(what: str, actual: Tensor, expected: Tensor, tolerance: float = 1e-4) -> float:
    """Check that two tensors are equal up to rounding.

    The error is the relative RMS of the difference. If all expected values are zero up to rounding, the error
    is the RMS of the difference.

    Args:
        what: beginning of the error message, such as "its output differs from the definition".
        actual: tensor to check.
        expected: tensor of the same shape.
        tolerance: largest allowed error (default: 1e-4).

    Returns:
        The error divided by the tolerance.

    Raises:
        InputError: The error exceeds the tolerance, or is NaN.
    """
    scale, least = expected.double().norm(), expected.numel() ** 0.5
    difference = (actual.double() - expected.double()).norm()
    error = (difference / (scale if scale > 1e-7 * least else least)).item()
    if not error <= tolerance:
        raise InputError(f"{what} by {error:.1e} (relative RMS error; at most {tolerance:.0e} is allowed)")
    return error / tolerance


class BatchSize(NamedTuple):
    """Size of a batch, written as 32x30 on the command line.

    Attributes:
        sentences: number of sentences.
        T: sentence length in tokens.
    """

    sentences: int
    T: int

    @classmethod
    def parse(cls, text: str) -> "BatchSize":
        """Parse a batch size, for ``type=`` of an argparse option.

        Args:
            text: command-line argument, such as "32x30".

        Returns:
            The batch size.

        Raises:
            argparse.ArgumentTypeError: The argument has a different format.

        Example:
            >>> BatchSize.parse("32x30")
            BatchSize(sentences=32, T=30)
        """
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not SENTENCESxTOKENS, such as 32x30")
        return cls(*map(int, match.groups()))


def number_options(**options: Any) -> Dict[str, Any]:
    """Define command-line options that take positive integers.

    Args:
        **options: default value of each option. Allowed names are the keys of :data:`NUMBERS`, which holds
            the help texts. If the default is a list, the option takes several numbers. None means no default.

    Returns:
        Arguments for ``add_argument``, keyed by option name, for :attr:`Task.options`.

    Example:
        >>> number_options(batch=4)["--batch"]["default"]
        4
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
    """Define a command-line option that takes one of several names.

    Args:
        *names: allowed values. The first one is the default.
        help: help text, to which the default is appended.

    Returns:
        Arguments for ``add_argument``, a value of :attr:`Task.options`.
    """
    return {"choices": names, "default": names[0], "help": f"{help} (default: {names[0]})"}
