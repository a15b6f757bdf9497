"""A full disk, folders that cannot be written to or vanish, bad clocks, and two that write to one place."""

import contextlib
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional

from fault_world import World
from flips import in_one_line
from kills import JOBS, fresh, made_in, undisturbed
from tallies import EQUAL, FAILED, REFUSED, Tally
from warmed import LIMIT, Ended, after, run, seeded, start, wait, watching_writes

# Commands whose result appears by one renaming: two of them make the same twice.
RENAMED_AT_ONCE = ("luna-average-checkpoints", "luna-export-huggingface", "luna-prepare-lra")


def full_disks(world: World, tally: Tally, times: Callable[[int], int], seed: int, plant: bool) -> None:
    """Little room for what is written: refused; started again when there is room: equal."""
    for job in JOBS:
        number = times(3)
        if not number:
            continue
        expected = undisturbed(world, job)
        size = sum(path.stat().st_size for path in world.now.rglob("*") if path.is_file())
        tally.start_clock()
        for turn in range(number):
            room = max(8 << 10, int(size * seeded(seed, "full", job.name, turn).uniform(0.05, 0.9)))
            world.anew()
            with mounted(world.now, f"size={room}") as remount:
                out = fresh(world, job, emptied=True)
                words = job.words(world, out)
                first: List[Callable[[], None]] = [] if remount else [partial(limited, room // 4)]
                first += [claiming_success] if plant else []
                ended = run(words, world.log, first=partial(all_of, first))
                outcome = REFUSED if in_one_line(ended) else FAILED
                tally.note("a full disk", job.name, outcome, said(ended))
                if remount:
                    remount("size=1g")
                second = run(words, world.log)
                same = second.status == 0 and made_in(out) == expected.made
                tally.note("room again after a full disk", job.name, EQUAL if same else FAILED, said(second))


def all_of(steps: List[Callable[[], None]]) -> None:
    for step in steps:
        step()


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Optional[Callable[[str], Any]]]:
    """A file system of its own in the folder, where this user may mount one; gives what changes its
    options."""
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    may = os.geteuid() == 0 and shutil.which("mount")
    if not may or subprocess.run(words, stderr=subprocess.DEVNULL).returncode:
        yield None
        return
    try:
        yield lambda changed: subprocess.run(["mount", "-o", f"remount,{changed}", str(folder)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def limited(size: int) -> None:
    """In the place of a full disk: no file may grow beyond a size."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def claiming_success() -> None:
    """A planted defect: whatever goes wrong, the status is 0."""
    leave = os._exit
    os._exit = lambda status: leave(0)  # type: ignore[assignment]


def read_only(world: World, tally: Tally, times: Callable[[int], int], seed: int, plant: bool) -> None:
    """A file system that is mounted read-only; for other users than root, folders without the permission."""
    for job in JOBS:
        for _ in range(times(1)):
            world.anew()
            with mounted(world.now, "size=1g") as remount:
                out = fresh(world, job, emptied=True)
                if remount:
                    remount("ro")
                else:
                    world.now.chmod(0o555)
                    if out.exists():
                        out.chmod(0o555)
                ended = run(job.words(world, out), world.log, first=claiming_success if plant else None)
                left = [path for path in world.now.rglob("*") if path != out]
                if not remount:
                    world.now.chmod(0o755)
            good = in_one_line(ended) and not left
            tally.note("a read-only folder", job.name, REFUSED if good else FAILED, f"{left} {said(ended)}")


def vanishing(world: World, tally: Tally, times: Callable[[int], int], seed: int, plant: bool) -> None:
    """The folder that is written to removed just before one of the command's file operations."""
    for job in JOBS:
        number = times(2)
        if not number:
            continue
        expected = undisturbed(world, job)
        tally.start_clock()
        for turn in range(number):
            # Not at one of the last: what they tidy may be gone without harm.
            at = seeded(seed, "vanishing", job.name, turn).randint(1, max(1, expected.operations * 9 // 10))
            gone = watching_writes(at, partial(shutil.rmtree, str(world.now), ignore_errors=True))
            first = [gone, claiming_success] if plant else [gone]
            out = fresh(world, job)
            ended = run(job.words(world, out), world.log, first=partial(all_of, first))
            same = ended.status == 0 and world.now.exists() and made_in(out) == expected.made
            outcome = EQUAL if same else REFUSED if in_one_line(ended) else FAILED
            tally.note("a folder that vanishes", job.name, outcome, f"at operation {at}: {said(ended)}")


def clocks(world: World, tally: Tally, times: Callable[[int], int], seed: int, plant: bool) -> None:
    """The clock set back by a year while a command works that is killed; its files of times to come or
    long ago when it is started again."""
    for job in JOBS:
        number = times(2 if job.name == "fairseq-train" else 1)
        if not number:
            continue
        expected = undisturbed(world, job)
        tally.start_clock()
        for turn in range(number):
            random = seeded(seed, "clock", job.name, turn)
            out = fresh(world, job)
            words = job.words(world, out)
            during = after(random.uniform(0, expected.seconds), signal.SIGKILL)
            run(words, world.log, first=partial(set_back, random.randint(1, 400)), during=during)
            for path in sorted(world.now.rglob("*")):
                if path.is_file() and random.random() < 0.5:
                    moment = time.time() + random.choice((-1, 1)) * 3e7
                    os.utime(str(path), (moment, moment))
            before = made_in(out)
            ended = run(words, world.log, first=claiming_nothing_to_do if plant else None)
            found = made_in(out)
            same = found == expected.made and (ended.status == 0 or before == expected.made)
            tally.note("the clock set back", job.name, EQUAL if same else FAILED, said(ended))


def set_back(calls: int) -> None:
    """After so many looks at the clock it is a year ago."""
    real, looks = time.time, [0]

    def shifted() -> float:
        looks[0] += 1
        return real() - (3e7 if looks[0] > calls else 0)

    time.time = shifted


def claiming_nothing_to_do() -> None:
    """A planted defect: what was begun is taken for finished."""
    os._exit(0)


def two_at_once(world: World, tally: Tally, times: Callable[[int], int], seed: int, plant: bool) -> None:
    """A second command into the folder of one that works: refused, and the first is as if alone."""
    for job in JOBS:
        number = 0 if job.name in RENAMED_AT_ONCE else times(2)
        if not number:
            continue
        expected = undisturbed(world, job)
        tally.start_clock()
        for _ in range(number):
            out = fresh(world, job)
            words = job.words(world, out)
            first = start(words, world.log, unlocked if plant else None)
            _stop_when_locked(out, first)
            # With another seed, so that what it writes is not the same.
            other = [*words, "--seed", "2"] if job.name == "fairseq-train" else words
            second = run(other, world.folder / "log2", first=unlocked if plant else None)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(first, signal.SIGCONT)
            status = wait(first)
            same = status == 0 and made_in(out) == expected.made
            good = same and in_one_line(second)
            detail = f"{status} {said(second)}"
            tally.note("two into one folder", job.name, REFUSED if good else FAILED, detail)


def _stop_when_locked(out: Path, process: int) -> None:
    """Have the first of two wait in the middle of its work."""
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        with contextlib.suppress(OSError):
            handle = os.open(str(out), os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.killpg(process, signal.SIGSTOP)
                return
            finally:
                os.close(handle)
        time.sleep(0.001)


def unlocked() -> None:
    """A planted defect: nobody looks whether another one writes."""
    from luna_fairseq.engine import starting_point
    from luna_fairseq.files import finished_steps

    starting_point.claim = finished_steps.claim = lambda folder: None


def said(ended: Ended) -> str:
    return f"status {ended.status}: {ended.output[-700:]}"
