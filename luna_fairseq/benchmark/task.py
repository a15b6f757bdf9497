"""Base class of the benchmarks, and the selection and checks of their rows."""

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
# Settings in which all rows are compared, such as a length, by the name of the table's column.
Case = Dict[str, Any]
# Measurements of one row in one case, in JSON types: seconds, bytes, ratios of speeds.
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
class Row:
    """Implementation that a benchmark measures, such as one implementation of attention.

    Attributes:
        make: function or class that does the job; its arguments depend on the task.
        equals: name of the row whose results this row must reproduce (default: none).
        limited: True if the row stores a matrix for every position. Such rows are measured up to
            ``--max-naive-length`` (default: False).
        why_not: function ``(args, case)`` that returns the reason why the row cannot run a case, or an empty
            string (default: a function that returns an empty string).
        peer: True to compare the speed of all rows with this row (default: False).
        optional: True to measure the row only if ``--with`` names it (default: False).
    """

    make: Callable[..., Any]
    equals: str = ""
    limited: bool = False
    why_not: Callable[..., str] = lambda args, case: ""
    peer: bool = False
    optional: bool = False


class Task:
    """Base class of benchmarks, each of which compares several implementations of one job.

    An implementation is called a row, because the results form a table with one row for each implementation.
    A case is a setting in which all rows are compared, such as a sequence length.

    Args:
        args: parsed options of the command.

    Attributes:
        notes: description of the measurement for ``--help`` and the output. Its paragraphs are separated by
            empty lines, and the first one is a sentence about the task.
        example: options of an example in ``--help``.
        options: options of this sub-command, with their arguments for ``add_argument``.
        table: rows by name.
        rate: "tokens" or "sentences" to print how many of them are processed per second; empty for no rate.
    """

    notes: ClassVar[str]
    example: ClassVar[str]
    options: ClassVar[Dict[str, Any]] = {}
    table: ClassVar[Dict[str, Row]]
    rate: ClassVar[str] = ""

    def __init__(self, args: argparse.Namespace):
        self.args = args

    @classmethod
    def paragraphs(cls) -> List[str]:
        """Return the paragraphs of the notes, each as one line."""
        return [" ".join(paragraph.split()) for paragraph in cls.notes.split("\n\n")]

    def rows(self) -> Dict[str, Any]:
        """Return the rows that can be measured, by name, in the order of the table."""
        return self.table

    def cases(self) -> List[Case]:
        """Return the settings in which all rows are compared, such as several sequence lengths."""
        raise NotImplementedError

    def why_not(self, row: Any, case: Case) -> str:
        """Return the reason why a row cannot run a case.

        Args:
            row: implementation to measure, a row of the table.
            case: settings of the measurement, such as a sequence length.

        Returns:
            A clause with the reason, or an empty string if the row can run the case.
        """
        return row.why_not(self.args, case)

    def check(self, row: Any) -> float:
        """Compare the results of a row with those of its definition.

        Args:
            row: implementation to check, a row of the table.

        Returns:
            The largest error, divided by the tolerance.

        Raises:
            InputError: The error exceeds the tolerance.
        """
        raise NotImplementedError

    def job(self, row: Any, case: Case) -> Job:
        """Prepare inputs, parameters and models, and return the function whose time is measured.

        Args:
            row: implementation to measure, a row of the table.
            case: settings of the measurement, such as a sequence length.

        Returns:
            A function without arguments.
        """
        raise NotImplementedError

    def describe(self) -> str:
        """Format the options that all cases share as one line."""
        values = {option[2:]: getattr(self.args, option[2:].replace("-", "_")) for option in self.options}
        return ", ".join(f"{name} {x}" for name, x in values.items() if x and not isinstance(x, list))


@dataclass
class Section:
    """Results of one task.

    Attributes:
        name: name of the task.
        rate: "tokens" or "sentences", whose number per second is printed; empty for no rate.
        notes: lines that describe the measurement.
        peers: names of the rows with which the others are compared.
        checks: largest error of each row, divided by the tolerance.
        failed: error message of each row that could not be measured.
        running: name of the row that is being measured. If the process dies, this row is the cause.
        results: measurements.
        profiles: profiles of the rows, with ``--profile``.
        changed: function that is called after each change.
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

    def begin(self, row: str) -> None:
        """Record which row is being measured.

        Args:
            row: name of the row; empty for none.
        """
        self.running = row
        self.changed()

    @contextmanager
    def catching(self, row: str) -> Iterator[None]:
        """Context manager that records the error of a row in ``failed`` instead of raising it.

        CUDA errors are raised, because they make the GPU unusable for the other rows.

        Args:
            row: name of the row that is measured in the context.
        """
        self.begin(row)
        try:
            yield
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            self.failed.setdefault(row, "out of memory. Use smaller sizes")
        except Exception as error:  # compilers raise errors of many types on new devices
            if "CUDA error" in str(error):
                raise
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            self.failed.setdefault(row, (kind + str(error)).split("\n")[0][:300])


def plan(task: Task, section: Section) -> List[Tuple[Case, Dict[str, Callable[[], Job]]]]:
    """Check the results of the rows of a task, and list the jobs to measure.

    Args:
        task: task to measure.
        section: results of the task. Its notes, peers, checks and failures are filled in place.

    Returns:
        A list of pairs: a case, and a dictionary from the name of each row to a function that prepares its
        job.

    Raises:
        InputError: ``--with`` or ``--without`` names an unknown row, or no row is left to measure.
    """
    rows = select(task.rows(), task.args.with_, task.args.without)
    # Rows that are skipped in some cases, by the reason. A dictionary keeps their order.
    skipped: Dict[str, Dict[str, None]] = {}
    cases = []
    for case in task.cases():
        reasons = {name: task.why_not(row, case) for name, row in rows.items()}
        for name in filter(reasons.get, reasons):
            skipped.setdefault(reasons[name], {})[name] = None
        cases.append((case, [name for name in rows if not reasons[name]]))
    skip_notes = [f"skipped: {', '.join(names)} ({reason})." for reason, names in skipped.items()]
    description = [line for paragraph in task.paragraphs() for line in textwrap.wrap(paragraph, 118)]
    section.notes = [*description, *skip_notes, task.describe()]
    possible = [name for name in rows if any(name in names for _, names in cases)]
    if not possible:
        raise InputError(" ".join(["no row can be measured;", *skip_notes]))
    for name in possible:
        with section.catching(name):
            section.checks[name] = task.check(rows[name])
    correct = [name for name in possible if name not in section.failed]
    section.peers = [name for name in correct if rows[name].peer]
    return [
        (case, {name: partial(task.job, rows[name], case) for name in correct if name in names})
        for case, names in cases
    ]


def select(rows: Dict[str, Any], wanted: Sequence[str], unwanted: Sequence[str]) -> Dict[str, Any]:
    """Select the rows to measure.

    Args:
        rows: all rows by name.
        wanted: names of optional rows to include (``--with``).
        unwanted: names of rows to exclude (``--without``).

    Returns:
        The selected rows by name, in the order of ``rows``.

    Raises:
        InputError: A name is unknown.
    """
    for option, names in (("--with", wanted), ("--without", unwanted)):
        for name in names:
            if name not in rows:
                raise InputError(f"{option} {name}: no row has this name. Choose from {', '.join(rows)}")
    always = {name for name, row in rows.items() if not row.optional}
    return {name: rows[name] for name in rows if name in always.union(wanted).difference(unwanted)}


def require_equal(what: str, actual: Tensor, expected: Tensor, tolerance: float = 1e-4) -> float:
    """Check that two tensors are equal up to rounding.

    The error is the relative RMS of the difference, or the RMS itself if the expected values are zero up to
    rounding.

    Args:
        what: first part of the error message, such as "its output differs from the definition".
        actual: tensor to check.
        expected: tensor of the same shape.
        tolerance: largest error allowed (default: 1e-4).

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
        T: number of tokens of each sentence.
    """

    sentences: int
    T: int

    @classmethod
    def read(cls, text: str) -> "BatchSize":
        """Parse a batch size, for ``type=`` of an argparse option.

        Args:
            text: word of the command line, such as "32x30".

        Returns:
            The batch size.

        Raises:
            argparse.ArgumentTypeError: The word has another form.

        Example:
            >>> BatchSize.read("32x30")
            BatchSize(sentences=32, T=30)
        """
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not SENTENCESxTOKENS, such as 32x30")
        return cls(*map(int, match.groups()))


def numbers(**options: Any) -> Dict[str, Any]:
    """Define command-line options that take positive integers.

    Args:
        **options: default value of each option. The name of the option is a key of :data:`NUMBERS`, which has
            the help texts. A list as the default allows several numbers, and None stands for no default.

    Returns:
        The options in the form of ``Task.options``: arguments for ``add_argument`` by option, such as
        "--batch".

    Example:
        >>> numbers(batch=4)["--batch"]["default"]
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


def choice(*names: str, help: str) -> Dict[str, Any]:
    """Define a command-line option that takes one of several names.

    Args:
        *names: allowed values. The first value is the default.
        help: help text, to which the default is appended.

    Returns:
        The arguments for ``add_argument``, a value of ``Task.options``.
    """
    return {"choices": names, "default": names[0], "help": f"{help} (default: {names[0]})"}
