"""SIGKILL and SIGTERM at random moments of every command that can be started again."""

import os
import random
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from fault_world import World, meaning
from tallies import EQUAL, FAILED, Tally
from warmed import Ended, after, run, seeded, watching_writes, writing_operations


class Job(NamedTuple):
    """A command, and how often it is killed: by the clock, at a file operation, while a checkpoint is
    written."""

    name: str
    words: Callable[[World, Path], List[str]]
    by_clock: int
    at_a_write: int
    while_saving: int = 0


JOBS = (
    Job("luna-prepare-bitext", World.prepare_bitext, 6, 8),
    Job("luna-prepare-text", World.prepare_text, 4, 6),
    Job("luna-prepare-task", World.prepare_task, 2, 6),
    Job("luna-prepare-lra", World.prepare_listops, 2, 6),
    Job("fairseq-train", World.train, 14, 10, 10),
    Job("luna-average-checkpoints", lambda world, out: world.average(out / "average.pt"), 4, 2, 4),
    Job("luna-evaluate", World.evaluate, 4, 6),
    Job("luna-finetune", World.finetune, 4, 4, 2),
    Job("luna-export-huggingface", World.export, 4, 6),
)
SAVES = {"fairseq-train": 5, "luna-average-checkpoints": 1, "luna-finetune": 2}  # in an undisturbed run


Fault = Callable[[Job, "Expected", random.Random], Dict[str, Any]]


class Expected(NamedTuple):
    """An undisturbed run: what it made, its time, its file operations."""

    made: Dict[str, str]
    seconds: float
    operations: int


def kills(world: World, tally: Tally, times: Callable[[int], int], seed: int, plant: bool) -> None:
    for job in JOBS:
        faults = {
            "SIGKILL at a random moment": (times(job.by_clock), _by_clock),
            "SIGKILL at a random file operation": (times(job.at_a_write), _at_a_write),
            "SIGKILL while a checkpoint is written": (times(job.while_saving), _while_saving),
        }
        _disturb(world, tally, job, faults, seed, plant)


def terminations(world: World, tally: Tally, times: Callable[[int], int], seed: int, plant: bool) -> None:
    """SIGTERM to the group, in whatever phase the command is."""
    for job in JOBS:
        number = times(8 if job.name == "fairseq-train" else 2)
        _disturb(world, tally, job, {"SIGTERM at a random moment": (number, _terminated)}, seed, plant)


def _by_clock(job: Job, expected: "Expected", generator: random.Random) -> Dict[str, Any]:
    return {"during": after(generator.uniform(0, expected.seconds), signal.SIGKILL)}


def _at_a_write(job: Job, expected: "Expected", generator: random.Random) -> Dict[str, Any]:
    return {"first": watching_writes(generator.randint(1, max(1, expected.operations)))}


def _while_saving(job: Job, expected: "Expected", generator: random.Random) -> Dict[str, Any]:
    number, delay = generator.randint(1, SAVES[job.name]), generator.uniform(0, 0.02)
    return {"first": watching_writes(while_saving=number, delay=delay)}


def _terminated(job: Job, expected: "Expected", generator: random.Random) -> Dict[str, Any]:
    return {"during": after(generator.uniform(0, expected.seconds), signal.SIGTERM)}


def _disturb(
    world: World, tally: Tally, job: Job, faults: Dict[str, Tuple[int, Fault]], seed: int, plant: bool
) -> None:
    if not any(number for number, _ in faults.values()):
        return
    expected = undisturbed(world, job)
    tally.start_clock()
    for what, (number, fault) in faults.items():
        for turn in range(number):
            generator = seeded(seed, what, job.name, turn)
            disturbed(world, job, expected, tally, what, partial(fault, job, expected, generator), plant)


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
    world: World,
    job: Job,
    expected: Expected,
    tally: Tally,
    what: str,
    fault: Callable[[], Dict[str, Any]],
    plant: bool,
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
    second = run(words, world.log, first=losing_the_last_byte if plant else None)
    found = made_in(out)
    # What was whole already may be refused: an export does not write into a folder that is there.
    whole = found == expected.made and (second.status == 0 or before == expected.made)
    tally.note(what, job.name, EQUAL if whole else FAILED, _differences(expected.made, found, second))


def made_in(out: Path) -> Dict[str, str]:
    """Of the output folder, and the names of what else lies around it."""
    made = meaning(out) if out.exists() else {}
    beside = {f"../{path.name}": "" for path in out.parent.iterdir() if path != out}
    return {**made, **beside}


def _differences(expected: Dict[str, str], found: Dict[str, str], second: Ended) -> str:
    names = sorted(n for n in {*expected, *found} if expected.get(n) != found.get(n))
    return f"status {second.status}, other than undisturbed: {names[:6]}: {second.output[-300:]}"


def losing_the_last_byte() -> None:
    """A planted defect: what is put in its place is not whole."""

    def lossy(move: Callable[..., Any]) -> Callable[..., Any]:
        def replace(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            if os.path.isfile(str(source)):
                os.truncate(str(source), max(0, os.path.getsize(str(source)) - 1))
            return move(source, target, *args, **kwargs)

        return replace

    os.replace, os.rename, shutil.move = lossy(os.replace), lossy(os.rename), lossy(shutil.move)
