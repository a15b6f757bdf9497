"""What all tasks are: a job that the rows of a table do, checked first, then measured side by side."""

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
# What a comparison's rows have in common, by the table's column names.
Case = Dict[str, Any]
# What was measured of a row in a case, as JSON: seconds, bytes, ratios of speeds.
Record = Dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A way of doing a task: what does it, the row whose results it must have, whether it keeps a matrix for
    every position (and so ends at ``--max-naive-length``), why it cannot do a case with the task's options,
    if it cannot; for ``peer`` and ``optional`` see the package."""

    make: Callable[..., Any]
    equals: str = ""
    limited: bool = False
    why_not: Callable[..., str] = lambda args, case: ""
    peer: bool = False
    optional: bool = False


class Task:
    """A job that the rows of its table do, with the options of the command line. ``notes`` say what is
    measured and how to read it (the first line is the help), ``options`` what only this sub-command has, as
    argparse takes it, and ``rate`` what is counted: ``tokens`` or ``sentences`` of the case, where the table
    shows a rate."""

    notes: ClassVar[str]
    options: ClassVar[Dict[str, Any]] = {}
    table: ClassVar[Dict[str, Row]]
    rate: ClassVar[str] = ""

    def __init__(self, args: argparse.Namespace):
        self.args = args

    def rows(self) -> Dict[str, Any]:
        """Its rows by name, in the table's order."""
        return self.table

    def cases(self) -> List[Case]:
        """What the rows are compared in."""
        raise NotImplementedError

    def why_not(self, row: Any, case: Case) -> str:
        """Why the row cannot do the case, or nothing."""
        return row.why_not(self.args, case)

    def check(self, row: Any) -> float:
        """The largest error of a row, by what is allowed. Raises InputError when it is beyond that."""
        raise NotImplementedError

    def job(self, row: Any, case: Case) -> Job:
        """Make inputs, parameters, models: whatever is there before the job; give the job."""
        raise NotImplementedError

    def describe(self) -> str:
        """What all cases have in common, in one line: options with one value."""
        values = {option[2:]: getattr(self.args, option[2:].replace("-", "_")) for option in self.options}
        return ", ".join(f"{name} {x}" for name, x in values.items() if x and not isinstance(x, list))


@dataclass
class Section:
    """The results of one task: beside those of the cases the largest error of each row by what is allowed,
    why a row that should have been measured was not, and the row at work, for whoever finds the file of a
    process that died. ``changed`` is called whenever there is something new."""

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
        """Note which row is at work; "" for none."""
        self.running = row
        self.changed()

    @contextmanager
    def trying(self, row: str) -> Iterator[None]:
        """Within it a row is at work, and an error is why it is not measured, or not in a case; but what
        breaks the GPU's context for all goes on."""
        self.begin(row)
        try:
            yield
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            self.failed.setdefault(row, "it ran out of memory: ask for smaller sizes")
        except Exception as error:  # a compiler that meets a new device may raise whatever it likes
            if "CUDA error" in str(error):
                raise
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            self.failed.setdefault(row, (kind + str(error)).split("\n")[0][:300])


def lay_out(task: Task, section: Section) -> List[Tuple[Case, Dict[str, Callable[[], Job]]]]:
    """Check a task's rows, and lay out what is to be measured: every case with its jobs by row, yet to be
    made. Raises InputError when ``--with`` and ``--without`` name a row that is none, or leave none."""
    rows = select(task.rows(), task.args.with_, task.args.without)
    absent: Dict[str, Dict[str, None]] = {}
    cases = []
    for case in task.cases():
        why = {name: task.why_not(row, case) for name, row in rows.items()}
        for name in filter(why.get, why):
            absent.setdefault(why[name], {})[name] = None
        cases.append((case, [name for name in rows if not why[name]]))
    left_out = [f"left out: {', '.join(names)}, {why}." for why, names in absent.items()]
    section.notes = [*textwrap.wrap(" ".join(task.notes.split()), 118), *left_out, task.describe()]
    possible = [name for name in rows if any(name in names for _, names in cases)]
    if not possible:
        raise InputError(" ".join(["nothing is left to measure.", *left_out]))
    for name in possible:
        with section.trying(name):
            section.checks[name] = task.check(rows[name])
    right = [name for name in possible if name not in section.failed]
    section.peers = [name for name in right if rows[name].peer]
    return [(case, {n: partial(task.job, rows[n], case) for n in right if n in can}) for case, can in cases]


def select(rows: Dict[str, Any], wanted: Sequence[str], unwanted: Sequence[str]) -> Dict[str, Any]:
    """The rows that ``--with`` and ``--without`` leave. Raises InputError for a name that is none."""
    for option, names in (("--with", wanted), ("--without", unwanted)):
        for name in names:
            if name not in rows:
                raise InputError(f"{option} {name}: there is no such row here; choose of {', '.join(rows)}")
    always = {name for name, row in rows.items() if not row.optional}
    return {name: rows[name] for name in rows if name in always.union(wanted).difference(unwanted)}


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
    """Sentences and tokens of each, written 32x30; the case of a task of whole models."""

    sentences: int
    T: int

    @classmethod
    def read(cls, text: str) -> "BatchSize":
        """Type of an option."""
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not SENTENCESxTOKENS, as in 32x30")
        return cls(*map(int, match.groups()))


def numbers(**options: Any) -> Dict[str, Any]:
    """Options whose values are numbers of at least 1, by name with their defaults; a list takes several."""
    found: Dict[str, Any] = {}
    for name, default in options.items():
        text, many = str(default).strip("[]").replace(",", ""), "+" if isinstance(default, list) else None
        option = {"type": positive, "default": default, "metavar": "N", "nargs": many}
        found[f"--{name.replace('_', '-')}"] = {**option, "help": f"default: {text}"}
    return found


def choice(*names: str, what: str = "") -> Dict[str, Any]:
    """An option that is one of some names, the first by default."""
    return {"choices": names, "default": names[0], "help": f"{what}default: {names[0]}"}
