"""The benchmark's own tasks as jobs: each row is checked alone first, then the good ones are timed together,
a job for every case."""

import argparse
import io
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import Any, Collection, Dict, Iterator, Sequence

import torch
from tqdm import tqdm

from luna_fairseq.benchmark.gpu.supervise import Job, Section
from luna_fairseq.benchmark.measure import Settings, compare
from luna_fairseq.benchmark.report import records
from luna_fairseq.costs.gpus import Gpu
from luna_fairseq.costs.roofline import beside

CHECK = "check of "


@dataclass(frozen=True)
class Timing:
    """A command line of ``python -m luna_fairseq.benchmark`` to be run case by case.

    Attributes:
        name, title: for the page
        words: of the command line
        device: ``cuda`` or ``cpu``
        gpu: of the roofline
        repetitions: of each time
        seconds: the most that it may take
    """

    name: str
    title: str
    words: Sequence[str]
    device: str
    gpu: Gpu
    repetitions: int = 5
    seconds: float = 120.0

    def task(self, without: Collection[str] = ()) -> Any:
        """The benchmark's task, without these rows."""
        from luna_fairseq.benchmark.__main__ import COMMANDS, build_parser

        words = ["--device", self.device, "--repetitions", str(self.repetitions), *self.words]
        args: argparse.Namespace = build_parser().parse_args(words)
        args.without = [*args.without, *without]
        settings = Settings(self.repetitions, torch.get_num_threads(), self.device, 1)
        return COMMANDS[args.command].of(args, settings)

    def command(self) -> str:
        """What gives the same table alone."""
        return f"python -m luna_fairseq.benchmark {' '.join(self.words)} --device {self.device}"

    def checks(self) -> Section:
        """A job for every row that has a definition: it must give what that gives."""
        from luna_fairseq.benchmark.task import select

        task = self.task()
        rows = select(task.rows(), task.args.with_, task.args.without)
        defined = [name for name, row in rows.items() if defined_elsewhere(row)]
        jobs = [Job(CHECK + name, Check(self, name)) for name in defined]
        return Section(f"{self.name}-checks", self.title, "", jobs, seconds=self.seconds)

    def times(self, without: Collection[str]) -> Section:
        """A job for every case, of the rows that are left."""
        jobs = [
            Job(", ".join(f"{name} {value}" for name, value in case.items()), Time(self, case, without))
            for case in self.task().cases()
        ]
        return Section(self.name, self.title, self.command(), jobs, seconds=self.seconds)


def defined_elsewhere(row: Any) -> bool:
    """Whether a row of one of the benchmark's tables has something that it must equal."""
    return bool(getattr(row, "equals", None) or getattr(row, "definition", None))


@dataclass(frozen=True)
class Check:
    """Whether one row gives what its definition gives; yields nothing, and fails where it does not."""

    timing: Timing
    form: str

    def __call__(self) -> Iterator[Dict[str, Any]]:
        task = self.timing.task()
        row = task.rows()[self.form]
        reasons = {task.why_not(row, case) for case in task.cases()}
        if "" in reasons:
            task.check({self.form: row})
        yield from ()


@dataclass(frozen=True)
class Time:
    """The rows of one case: as the benchmark's JSON has them, with a roofline where the operations are
    known."""

    timing: Timing
    case: Dict[str, Any]
    without: Collection[str]

    def __call__(self) -> Iterator[Dict[str, Any]]:
        from luna_fairseq.benchmark.task import lay_out

        timing = self.timing
        task = timing.task(self.without)
        task.check = nothing  # each was checked alone
        task.cases = partial(list, [self.case])
        section, [(case, forms)], [count] = lay_out(task)
        with tqdm(disable=True) as progress, redirect_stdout(io.StringIO()):
            for results in compare(case, forms, count, task.settings, progress):
                last = results
        for record in records(section, last):
            record["seconds"].pop("samples")
            yield {**record, "roofline": self.roofline(task, record)}

    def roofline(self, task: Any, record: Dict[str, Any]) -> Dict[str, Any]:
        """What the record's row should take."""
        from luna_fairseq.benchmark.gpu.work import work_of

        work = work_of(task, record["case"], record["form"])
        return {} if work is None else beside(work, self.timing.gpu, record["seconds"]["median"])


def nothing(rows: Dict[str, Any]) -> None:
    """The check of rows that need none."""
