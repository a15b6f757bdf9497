"""What all sub-commands are: a job that the rows of a table do, checked first, then measured side by side."""

import argparse
import textwrap
from abc import ABC, abstractmethod
from functools import partial
from typing import Any, ClassVar, Dict, List, NamedTuple, Optional, Sequence, Tuple

from luna_fairseq.benchmark.exponents import Theory
from luna_fairseq.benchmark.measure import Case, Form, Job, Settings
from luna_fairseq.benchmark.report import Section
from luna_fairseq.errors import InputError

NOTES_WIDTH = 118


class Task(ABC):
    """A job that can be done in several ways: the rows of its table.

    It is pickled, since the memory of each row is measured in a process of its own.

    Args:
        args: values of the options that :meth:`add_options` has added
        settings: how to measure

    Attributes:
        name: of the results, which is that of the sub-command
        help: one line on the sub-command
        notes: what is measured, and how to read it
        rate: unit of :meth:`count`, as ``tokens`` (default: the table shows no rate)
        length: column of the case that the plot has as its abscissa (default: it shows ratios as bars)
        panels: columns of the case by whose values the plot has panels of their own
    """

    name: ClassVar[str]
    help: ClassVar[str]
    notes: ClassVar[str]
    rate: ClassVar[Optional[str]] = None
    length: ClassVar[Optional[str]] = None
    panels: ClassVar[Sequence[str]] = ()

    def __init__(self, args: argparse.Namespace, settings: Settings):
        self.args = args
        self.settings = settings

    @classmethod
    def of(cls, args: argparse.Namespace, settings: Settings) -> "Task":
        """The task that the sub-command's options ask for."""
        return cls(args, settings)

    @classmethod  # noqa: B027
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Add what only this sub-command has. ``--with`` and ``--without`` are common to all."""

    @abstractmethod
    def rows(self) -> Dict[str, Any]:
        """Its rows by name, in the table's order; each has the attributes ``peer`` and ``optional``."""

    @abstractmethod
    def cases(self) -> List[Case]:
        """What the rows are compared in, by the table's column names."""

    def why_not(self, row: Any, case: Case) -> str:
        """Why the row cannot do the case, or nothing."""
        return ""

    @abstractmethod
    def check(self, rows: Dict[str, Any]) -> None:
        """Raise InputError, before anything is timed, when a row does not do what it should."""

    @abstractmethod
    def build(self, row: Any, case: Case) -> Any:
        """Inputs, parameters, models: whatever is there before the job."""

    @abstractmethod
    def step(self, row: Any, built: Any, case: Case) -> Job:
        """The job."""

    def count(self, case: Case) -> int:
        """How much one job does, in units of ``rate``."""
        return 0

    def theory(self) -> Dict[str, Theory]:
        """What is known of how its rows' cost grows, by name, if exponents are to be fitted beside it."""
        return {}

    @abstractmethod
    def tiny(self, case: Case) -> Tuple["Task", Case]:
        """The same job at next to no size, through the same code."""

    def describe(self) -> str:
        """The sizes in one line."""
        return ""


class Comparison(NamedTuple):
    """A task's rows, ready to be measured.

    Attributes:
        section: to be filled with results
        cases: and the forms that are measured in each
        counts: how much a job of each case does
    """

    section: Section
    cases: List[Tuple[Case, List[Form]]]
    counts: List[int]


def lay_out(task: Task) -> Comparison:
    """Check a task's rows and lay out what is to be measured.

    Raises:
        InputError: a row is wrong, or ``--with`` and ``--without`` name one that is none, or leave none
    """
    rows = select(task.rows(), task.args.with_, task.args.without)
    reasons: Dict[str, List[str]] = {}
    cases: List[Tuple[Case, List[Form]]] = []
    for case in task.cases():
        forms = []
        for name, row in rows.items():
            why_not = task.why_not(row, case)
            if why_not:
                reasons.setdefault(why_not, []).append(name)
            else:
                forms.append(
                    Form(name, partial(prepare, task, row, case), partial(prepare, *small(task, row, case)))
                )
        if forms:
            cases.append((case, forms))
    names = {form.name for _, forms in cases for form in forms}
    measured = {name: row for name, row in rows.items() if name in names}
    notes = [left_out(list(dict.fromkeys(absent)), why_not) for why_not, absent in reasons.items()]
    if not measured:
        raise InputError(" ".join(["nothing is left to measure.", *notes]))
    task.check(measured)
    peers = [name for name, row in measured.items() if row.peer]
    notes = [*textwrap.wrap(" ".join(task.notes.split()), NOTES_WIDTH), *notes, task.describe()]
    section = Section(task.name, notes, peers, [], task.length, task.panels, task.rate, task.theory())
    return Comparison(section, cases, [task.count(case) for case, _ in cases])


def prepare(task: Task, row: Any, case: Case) -> Job:
    """The job of a row."""
    return task.step(row, task.build(row, case), case)


def small(task: Task, row: Any, case: Case) -> Tuple[Task, Any, Case]:
    """Arguments of :func:`prepare` for the warm-up."""
    tiny, tiny_case = task.tiny(case)
    return tiny, row, tiny_case


def left_out(names: List[str], why_not: str) -> str:
    """A note."""
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"{listed} {'is' if len(names) == 1 else 'are'} left out: {why_not}."


def select(rows: Dict[str, Any], wanted: Sequence[str], unwanted: Sequence[str]) -> Dict[str, Any]:
    """The rows that ``--with`` and ``--without`` leave. Raises InputError for a name that is none."""
    for option, names in (("--with", wanted), ("--without", unwanted)):
        for name in names:
            if name not in rows:
                raise InputError(f"{option} {name}: there is no such form here; choose of {', '.join(rows)}")
    return {
        name: row
        for name, row in rows.items()
        if name not in unwanted and (name in wanted or not row.optional)
    }
