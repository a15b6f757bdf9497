"""SIGKILL and SIGTERM at random moments of every command that can be started again."""

import random
import signal
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from fault_world import World, meaning
from tallies import EQUAL, FAILED, Tally
from warmed import after, run, seeded, watching_writes, writing_operations


class Job(NamedTuple):
    """A command, and how often it is killed: by the clock, at a file operation, while a checkpoint is
    written."""

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
SAVES = {"fairseq-train": 5, "luna-average-checkpoints": 1, "luna-finetune": 2}  # in an undisturbed run


class Expected(NamedTuple):
    """An undisturbed run: what it made, its time, its file operations."""

    made: Dict[str, str]
    seconds: float
    operations: int


Fault = Callable[[Job, Expected, random.Random], Dict[str, Any]]


def kills(world: World, tally: Tally, times: Callable[[int], int], seed: int) -> None:
    """SIGTERM goes to the group, in whatever phase the command is."""
    for job in JOBS:
        faults: Dict[str, Tuple[int, Fault]] = {
            "SIGKILL at a random moment": (job.by_clock, partial(_by_clock, signal.SIGKILL)),
            "SIGKILL at a random file operation": (job.at_a_write, _at_a_write),
            "SIGKILL while a checkpoint is written": (job.while_saving, _while_saving),
            "SIGTERM at a random moment": (job.terminated, partial(_by_clock, signal.SIGTERM)),
        }
        numbers = {what: times(number) for what, (number, _) in faults.items()}
        if any(numbers.values()):
            expected = undisturbed(world, job)
        for what, number in numbers.items():
            for turn in range(number):
                fault = partial(faults[what][1], job, expected, seeded(seed, what, job.name, turn))
                disturbed(world, job, expected, tally, what, fault)


def _by_clock(number: int, job: Job, expected: Expected, generator: random.Random) -> Dict[str, Any]:
    return {"during": after(generator.uniform(0, expected.seconds), number)}


def _at_a_write(job: Job, expected: Expected, generator: random.Random) -> Dict[str, Any]:
    return {"first": watching_writes(generator.randint(1, max(1, expected.operations)))}


def _while_saving(job: Job, expected: Expected, generator: random.Random) -> Dict[str, Any]:
    number, delay = generator.randint(1, SAVES[job.name]), generator.uniform(0, 0.02)
    return {"first": watching_writes(while_saving=number, delay=delay)}


def undisturbed(world: World, job: Job) -> Expected:
    out = fresh(world, job)
    ended = world.succeed(job.words(world, out), first=watching_writes())
    return Expected(made_in(out), ended.seconds, writing_operations())


def fresh(world: World, job: Job, emptied: bool = False) -> Path:
    """Where the command writes to, in an empty folder; ``emptied`` where that is one already."""
    out = world.now / "out" if emptied else world.anew()
    if job.name == "luna-average-checkpoints":
        out.mkdir()
    return out


def disturbed(
    world: World, job: Job, expected: Expected, tally: Tally, what: str, fault: Callable[[], Dict[str, Any]]
) -> None:
    """Run with the fault until it comes before the end, then start again, and compare."""
    for _ in range(4):
        out = fresh(world, job)
        words = job.words(world, out)
        first = run(words, world.log, **fault())
        if first.status != 0:
            break
    if first.status == 1 and "error: " not in first.output:
        tally.note(what, job.name, FAILED, first.output[-600:])
        return
    before = made_in(out)
    second = run(words, world.log)
    found = made_in(out)
    # What was whole already may be refused: an export does not write into a folder that is there.
    whole = found == expected.made and (second.status == 0 or before == expected.made)
    other = sorted(n for n in {*expected.made, *found} if expected.made.get(n) != found.get(n))
    detail = f"status {second.status}, other than undisturbed: {other[:6]}: {second.output[-300:]}"
    tally.note(what, job.name, EQUAL if whole else FAILED, detail)


def made_in(out: Path) -> Dict[str, str]:
    """Of the output folder, and the names of what else lies around it."""
    made = meaning(out) if out.exists() else {}
    beside = {f"../{path.name}": "" for path in out.parent.iterdir() if path != out}
    return {**made, **beside}
