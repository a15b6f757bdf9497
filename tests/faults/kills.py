"""Send SIGKILL and SIGTERM at random moments to every command that can be started again."""

import random
import signal
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from fault_world import World, digests
from tallies import EQUAL, FAILED, Tally
from warmed import after, run, seeded, watching_writes, writing_operations


class Job(NamedTuple):
    """Command, and how often it is killed in each way.

    Attributes:
        name: name of the command.
        words: function ``(world, output folder) -> command line``.
        by_clock: number of SIGKILLs at a random moment.
        at_a_write: number of SIGKILLs at a random file operation.
        while_saving: number of SIGKILLs while a checkpoint is written (default: 0).
        terminated: number of SIGTERMs at a random moment (default: 2).
    """

    name: str
    words: Callable[[World, Path], List[str]]
    by_clock: int
    at_a_write: int
    while_saving: int = 0
    terminated: int = 2


JOBS = (
    Job("luna-prepare-bitext", World.prepare_bitext, 6, 8),
    Job("luna-prepare-text", World.prepare_text, 4, 6),
    Job("luna-prepare-task", World.prepare_task, 2, 6),
    Job("luna-prepare-lra", World.prepare_listops, 2, 6),
    Job("fairseq-train", World.train, 14, 10, 10, 8),
    Job("luna-average-checkpoints", lambda world, out: world.average(out / "average.pt"), 4, 2, 4),
    Job("luna-evaluate", World.evaluate, 4, 6),
    Job("luna-finetune", World.finetune, 4, 4, 2),
    Job("luna-export-huggingface", World.export, 4, 6),
)
# Number of checkpoints that an undisturbed run writes.
SAVES = {"fairseq-train": 5, "luna-average-checkpoints": 1, "luna-finetune": 2}


class Expected(NamedTuple):
    """Result of an undisturbed run.

    Attributes:
        made: {relative path: digest} of the files.
        seconds: duration of the run.
        operations: number of file operations that change files or folders.
    """

    made: Dict[str, str]
    seconds: float
    operations: int


Fault = Callable[[Job, Expected, random.Random], Dict[str, Any]]


def kills(world: World, tally: Tally, times: Callable[[int], int], seed: int) -> None:
    """Kill every job, start it again, and compare the result with an undisturbed run.

    A signal goes to the whole process group of a command.

    Args:
        world: texts, data and checkpoints of the campaign.
        tally: counter of outcomes, updated in place.
        times: function from a number of repetitions to the number for this part of the campaign.
        seed: seed of random choices.
    """
    for job in JOBS:
        faults: Dict[str, Tuple[int, Fault]] = {
            "SIGKILL at a random moment": (job.by_clock, partial(_by_clock, signal.SIGKILL)),
            "SIGKILL at a random file operation": (job.at_a_write, _at_a_write),
            "SIGKILL while a checkpoint is written": (job.while_saving, _while_saving),
            "SIGTERM at a random moment": (job.terminated, partial(_by_clock, signal.SIGTERM)),
        }
        numbers = {what: times(number) for what, (number, _) in faults.items()}
        if any(numbers.values()):
            expected = run_undisturbed(world, job)
        for what, number in numbers.items():
            for turn in range(number):
                fault = partial(faults[what][1], job, expected, seeded(seed, what, job.name, turn))
                run_disturbed(world, job, expected, tally, what, fault)


def _by_clock(number: int, job: Job, expected: Expected, generator: random.Random) -> Dict[str, Any]:
    return {"during": after(generator.uniform(0, expected.seconds), number)}


def _at_a_write(job: Job, expected: Expected, generator: random.Random) -> Dict[str, Any]:
    return {"first": watching_writes(generator.randint(1, max(1, expected.operations)))}


def _while_saving(job: Job, expected: Expected, generator: random.Random) -> Dict[str, Any]:
    number, delay = generator.randint(1, SAVES[job.name]), generator.uniform(0, 0.02)
    return {"first": watching_writes(while_saving=number, delay=delay)}


def run_undisturbed(world: World, job: Job) -> Expected:
    """Run a job without a fault, and return its result."""
    out = fresh_folder(world, job)
    ended = world.succeed(job.words(world, out), first=watching_writes())
    return Expected(digests_in(out), ended.seconds, writing_operations())


def fresh_folder(world: World, job: Job, is_empty: bool = False) -> Path:
    """Empty the folder ``now``, and return the output folder of a job in it.

    Args:
        world: texts, data and checkpoints of the campaign.
        job: command that will write to the folder.
        is_empty: True if ``now`` is empty already (default: False).
    """
    out = world.now / "out" if is_empty else world.empty_folder()
    if job.name == "luna-average-checkpoints":
        out.mkdir()
    return out


def run_disturbed(
    world: World, job: Job, expected: Expected, tally: Tally, what: str, fault: Callable[[], Dict[str, Any]]
) -> None:
    """Run a job with a fault, start it again, compare the result, and count the outcome.

    If the job ends before the fault, it runs again, up to four times.

    Args:
        world: texts, data and checkpoints of the campaign.
        job: command to disturb.
        expected: result of an undisturbed run.
        tally: counter of outcomes, updated in place.
        what: description of the fault for the tables.
        fault: function that returns the arguments ``first`` or ``during`` of :func:`warmed.run`.
    """
    for _ in range(4):
        out = fresh_folder(world, job)
        words = job.words(world, out)
        first = run(words, world.log, **fault())
        if first.status != 0:
            break
    if first.status == 1 and "error: " not in first.output:
        tally.note(what, job.name, FAILED, first.output[-600:])
        return
    before = digests_in(out)
    second = run(words, world.log)
    found = digests_in(out)
    # A command may refuse to run again after a complete result: an export does not replace a folder.
    is_complete = found == expected.made and (second.status == 0 or before == expected.made)
    other = sorted(n for n in {*expected.made, *found} if expected.made.get(n) != found.get(n))
    detail = f"status {second.status}, files that differ: {other[:6]}: {second.output[-300:]}"
    tally.note(what, job.name, EQUAL if is_complete else FAILED, detail)


def digests_in(out: Path) -> Dict[str, str]:
    """Return the digests of all files in ``out``, and the names of other files beside ``out``."""
    made = digests(out) if out.exists() else {}
    beside = {f"../{path.name}": "" for path in out.parent.iterdir() if path != out}
    return {**made, **beside}
