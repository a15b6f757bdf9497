"""A full disk, folders that cannot be written to or vanish, and two that write to one place."""

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
from typing import Any, Callable, Iterator, Optional

from fault_world import World
from flips import is_refused, said
from kills import JOBS, fresh, made_in, undisturbed
from tallies import EQUAL, FAILED, REFUSED, Tally
from warmed import LIMIT, run, seeded, start, wait, watching_writes

# Commands whose result appears by one renaming: two of them make the same twice.
RENAMED_AT_ONCE = ("luna-average-checkpoints", "luna-export-huggingface", "luna-prepare-lra")


def full_disks(world: World, tally: Tally, times: Callable[[int], int], seed: int) -> None:
    """Little room for what is written: refused; started again when there is room: equal."""
    for job in JOBS:
        number = times(3)
        if not number:
            continue
        expected = undisturbed(world, job)
        size = sum(path.stat().st_size for path in world.now.rglob("*") if path.is_file())
        for turn in range(number):
            room = max(8 << 10, int(size * seeded(seed, "full", job.name, turn).uniform(0.05, 0.9)))
            world.anew()
            with mounted(world.now, f"size={room}") as remount:
                out = fresh(world, job, emptied=True)
                words = job.words(world, out)
                ended = run(words, world.log, first=None if remount else partial(limited, room // 4))
                outcome = REFUSED if is_refused(ended) else FAILED
                tally.note("a full disk", job.name, outcome, said(ended))
                if remount:
                    remount("size=1g")
                second = run(words, world.log)
                same = second.status == 0 and made_in(out) == expected.made
                tally.note("room again after a full disk", job.name, EQUAL if same else FAILED, said(second))


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


def read_only(world: World, tally: Tally, times: Callable[[int], int], seed: int) -> None:
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
                ended = run(job.words(world, out), world.log)
                left = [path for path in world.now.rglob("*") if path != out]
                if not remount:
                    world.now.chmod(0o755)
            good = is_refused(ended) and not left
            tally.note("a read-only folder", job.name, REFUSED if good else FAILED, f"{left} {said(ended)}")


def vanishing(world: World, tally: Tally, times: Callable[[int], int], seed: int) -> None:
    """The folder that is written to removed just before one of the command's file operations."""
    for job in JOBS:
        number = times(2)
        if not number:
            continue
        expected = undisturbed(world, job)
        for turn in range(number):
            # Not at one of the last: what they tidy may be gone without harm.
            at = seeded(seed, "vanishing", job.name, turn).randint(1, max(1, expected.operations * 9 // 10))
            gone = watching_writes(at, partial(shutil.rmtree, str(world.now), ignore_errors=True))
            out = fresh(world, job)
            ended = run(job.words(world, out), world.log, first=gone)
            same = ended.status == 0 and world.now.exists() and made_in(out) == expected.made
            outcome = EQUAL if same else REFUSED if is_refused(ended) else FAILED
            tally.note("a folder that vanishes", job.name, outcome, f"at operation {at}: {said(ended)}")


def two_at_once(world: World, tally: Tally, times: Callable[[int], int], seed: int) -> None:
    """A second command into the folder of one that works: refused, and the first is as if alone."""
    for job in JOBS:
        number = 0 if job.name in RENAMED_AT_ONCE else times(2)
        if not number:
            continue
        expected = undisturbed(world, job)
        for _ in range(number):
            out = fresh(world, job)
            words = job.words(world, out)
            first = start(words, world.log)
            _stop_when_locked(out, first)
            # With another seed, so that what it writes is not the same.
            other = [*words, "--seed", "2"] if job.name == "fairseq-train" else words
            second = run(other, world.folder / "log2")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(first, signal.SIGCONT)
            status = wait(first)
            same = status == 0 and made_in(out) == expected.made
            good = same and is_refused(second)
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
