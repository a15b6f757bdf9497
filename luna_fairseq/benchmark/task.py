"""Base class of the benchmark's tasks, and the selection and checks of their rows."""

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
    """One way to do the job of a task, such as an implementation of attention.

    Attributes:
        make: function or class that does the job; its arguments depend on the task.
        equals: name of the row whose results this row must reproduce (default: none).
        limited: True if the row stores a matrix for every position. Such rows are measured up to
            ``--max-naive-length`` (default: False).
        why_not: function ``(args, case)`` that returns why the row cannot run a case, or an empty string.
        peer: True to compare the speed of all rows with this one.
        optional: True to measure the row only if ``--with`` names it.
    """

    make: Callable[..., Any]
    equals: str = ""
    limited: bool = False
    why_not: Callable[..., str] = lambda args, case: ""
    peer: bool = False
    optional: bool = False


class Task:
    """Base class of tasks: a job that can be done in several ways, which are the rows of its table.

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
        """Return the rows by name, in the order of the table."""
        return self.table

    def cases(self) -> List[Case]:
        """Return the cases in which the rows are compared."""
        raise NotImplementedError

    def why_not(self, row: Any, case: Case) -> str:
        """Return why a row cannot run a case, or an empty string if it can.

        Args:
            row: row of the table.
            case: case to measure.
        """
        return row.why_not(self.args, case)

    def check(self, row: Any) -> float:
        """Compare the results of a row with those of its definition.

        Args:
            row: row of the table.

        Returns:
            The largest error, divided by the tolerance.

        Raises:
            InputError: The error exceeds the tolerance.
        """
        raise NotImplementedError

    def job(self, row: Any, case: Case) -> Job:
        """Prepare inputs, parameters and models, and return the function whose time is measured.

        Args:
            row: row of the table.
            case: case to measure.
        """
        raise NotImplementedError

    def describe(self) -> str:
        """Return the options that all cases share as one line."""
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
        Pairs of a case and a dictionary, which maps the name of a row to a function that prepares its job.

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
        wanted: optional rows to include (``--with``).
        unwanted: rows to exclude (``--without``).

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

        Example:
            >>> BatchSize.read("32x30")
            BatchSize(sentences=32, T=30)
        """
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not SENTENCESxTOKENS, such as 32x30")
        return cls(*map(int, match.groups()))


def numbers(**options: Any) -> Dict[str, Any]:
    """Return options that take positive integers, for ``Task.options``.

    Args:
        **options: default value by name, one of :data:`NUMBERS`. If the default is a list, the option accepts
            several numbers.
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
    """Return the arguments of an option that takes one of several names, for ``Task.options``.

    Args:
        *names: allowed values. The first one is the default.
        help: help text. The default is appended.
    """
    return {"choices": names, "default": names[0], "help": f"{help} (default: {names[0]})"}
