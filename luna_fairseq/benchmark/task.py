"""What all tasks are: a job that the rows of a table do, checked first, then measured side by side."""

import argparse
import re
import textwrap
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, ClassVar, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from luna_fairseq.benchmark.measure import Case, Job, Record, Settings
from luna_fairseq.commands.arguments import positive
from luna_fairseq.errors import InputError

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}


@dataclass(frozen=True)
class Row:
    """A way of doing a task: what does it, the row whose results it must have, whether it keeps a matrix for
    every position (and so ends at ``--max-naive-length``), why it cannot do a case with the task's settings,
    if it cannot; for ``peer`` and ``optional`` see the package."""

    make: Callable[..., Any]
    equals: str = ""
    limited: bool = False
    why_not: Optional[Callable[..., str]] = None
    peer: bool = False
    optional: bool = False


class Task:
    """A job that the rows of its table do.

    Attributes:
        name: of the results, which is that of the sub-command
        notes: what is measured, and how to read it; its first line is the help
        rate: unit of :meth:`count`, as ``tokens`` (default: the table shows no rate)
        length: column of the case that the plot has as its abscissa
    """

    name: ClassVar[str]
    notes: ClassVar[str]
    rate: ClassVar[str] = ""
    length: ClassVar[str] = ""

    def __init__(self, args: argparse.Namespace, settings: Settings):
        self.args = args
        self.settings = settings

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Add what only this sub-command has."""

    def rows(self) -> Dict[str, Any]:
        """Its rows by name, in the table's order."""
        raise NotImplementedError

    def cases(self) -> List[Case]:
        """What the rows are compared in, by the table's column names."""
        raise NotImplementedError

    def why_not(self, row: Any, case: Case) -> str:
        """Why the row cannot do the case, or nothing."""
        return ""

    def check(self, row: Any) -> float:
        """The largest error of a row, by what is allowed. Raises InputError when it does not do what it
        should."""
        raise NotImplementedError

    def job(self, row: Any, case: Case) -> Job:
        """Make inputs, parameters, models: whatever is there before the job; give the job."""
        raise NotImplementedError

    def count(self, case: Case) -> int:
        """How much one job does, in units of ``rate``."""
        return 0

    def describe(self) -> str:
        """The sizes in one line."""
        raise NotImplementedError


@dataclass
class Section:
    """The results of one task.

    Attributes:
        checks: largest error of each row, by what is allowed
        failed: why a row that should have been measured was not
        running: the row at work, for whoever finds the file of a process that died
    """

    name: str
    length: str = ""
    rate: str = ""
    notes: List[str] = field(default_factory=list)
    peers: List[str] = field(default_factory=list)
    checks: Dict[str, float] = field(default_factory=dict)
    failed: Dict[str, str] = field(default_factory=dict)
    running: str = ""
    results: List[Record] = field(default_factory=list)
    profiles: List[Record] = field(default_factory=list)

    def fail(self, row: str, error: BaseException) -> None:
        """Note that a row is not measured, or not in a case; what breaks the GPU's context for all is raised
        again."""
        if "CUDA error" in str(error):
            raise error
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        self.failed.setdefault(row, f"{kind}{next(iter(str(error).splitlines()), '')}"[:300])


# The jobs of every case by row, yet to be made.
Cases = List[Tuple[Case, Dict[str, Callable[[], Job]]]]


def lay_out(task: Task, changed: Callable[[Section], Any] = lambda section: None) -> Tuple[Section, Cases]:
    """Check a task's rows and lay out what is to be measured; ``changed`` is called whenever the section says
    something new. Raises InputError when ``--with`` and ``--without`` name a row that is none, or leave
    none."""
    section = Section(task.name, task.length, task.rate)
    rows = select(task.rows(), task.args.with_, task.args.without)
    absent: Dict[str, Dict[str, None]] = {}
    cases: Cases = []
    for case in task.cases():
        jobs: Dict[str, Callable[[], Job]] = {}
        for name, row in rows.items():
            why = task.why_not(row, case)
            if why:
                absent.setdefault(why, {})[name] = None
            else:
                jobs[name] = partial(task.job, row, case)
        cases.append((case, jobs))
    left_out = [f"left out: {', '.join(names)}, {why}." for why, names in absent.items()]
    section.notes = [*textwrap.wrap(" ".join(task.notes.split()), 118), *left_out, task.describe()]
    possible = [name for name in rows if any(name in jobs for _, jobs in cases)]
    if not possible:
        raise InputError(" ".join(["nothing is left to measure.", *left_out]))
    for section.running in possible:
        changed(section)
        try:
            section.checks[section.running] = task.check(rows[section.running])
        except Exception as error:  # a compiler that meets a new device may raise whatever it likes
            section.fail(section.running, error)
    section.running = ""
    section.peers = [name for name in possible if rows[name].peer and name not in section.failed]
    right = [(case, {n: job for n, job in jobs.items() if n not in section.failed}) for case, jobs in cases]
    return section, [(case, jobs) for case, jobs in right if jobs]


def select(rows: Dict[str, Any], wanted: Sequence[str], unwanted: Sequence[str]) -> Dict[str, Any]:
    """The rows that ``--with`` and ``--without`` leave. Raises InputError for a name that is none."""
    for option, names in (("--with", wanted), ("--without", unwanted)):
        for name in names:
            if name not in rows:
                raise InputError(f"{option} {name}: there is no such row here; choose of {', '.join(rows)}")
    left = {name: row for name, row in rows.items() if name not in unwanted}
    return {name: row for name, row in left.items() if name in wanted or not row.optional}


def require_equal(what: str, actual: Tensor, expected: Tensor, tolerance: float = 1e-4) -> float:
    """The relative RMS of a difference, by the tolerance; where all that is expected is zero but for
    rounding, the RMS itself. Raises InputError when it is beyond the tolerance, or NaN."""
    scale, least = expected.double().norm(), expected.numel() ** 0.5
    difference = (actual.double() - expected.double()).norm()
    error = (difference / (scale if scale > 1e-7 * least else least)).item()
    if not error <= tolerance:
        raise InputError(f"it is wrong: {what} by {error:.1e} (relative RMS, {tolerance:.0e} is allowed)")
    return error / tolerance


class BatchSize(NamedTuple):
    """Sentences and tokens of each, written 32x30."""

    sentences: int
    tokens: int

    @classmethod
    def read(cls, text: str) -> "BatchSize":
        """Type of an option."""
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not SENTENCESxTOKENS, as in 32x30")
        return cls(*map(int, match.groups()))


def add_numbers(parser: argparse.ArgumentParser, **options: Any) -> None:
    """Options whose values are numbers of at least 1, by name with their defaults; a list takes several."""
    for name, default in options.items():
        many = isinstance(default, list)
        text = f"default: {' '.join(map(str, default)) if many else default}"
        option: Any = {"type": positive, "default": default, "metavar": "N", "help": text}
        if many:
            option["nargs"] = "+"
        parser.add_argument(f"--{name.replace('_', '-')}", **option)
