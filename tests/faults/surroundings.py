"""Full disks, read-only folders, folders that are removed, and two commands in one folder."""

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
from flips import describe, is_refused
from kills import JOBS, digests_in, fresh_folder, run_undisturbed
from tallies import EQUAL, FAILED, REFUSED, UNPROTECTED, Tally
from warmed import LIMIT, run, seeded, start, wait, watching_writes

# Commands whose result appears by one renaming. Two of them at once make the same result twice.
RENAMED_AT_ONCE = ("luna-average-checkpoints", "luna-export-huggingface", "luna-prepare-lra")


def full_disks(world: World, tally: Tally, times: Callable[[int], int], seed: int) -> None:
    """Fill the disk while a command writes, then free space and run the command again.

    The first run must be refused. The second run must equal an undisturbed run. The arguments are those of
    :func:`kills.kills`.
    """
    for job in JOBS:
        number = times(3)
        if not number:
            continue
        expected = run_undisturbed(world, job)
        size = sum(path.stat().st_size for path in world.now.rglob("*") if path.is_file())
        for turn in range(number):
            room = max(8 << 10, int(size * seeded(seed, "full", job.name, turn).uniform(0.05, 0.9)))
            world.empty_folder()
            with mounted(world.now, f"size={room}") as remount:
                out = fresh_folder(world, job, is_empty=True)
                words = job.words(world, out)
                ended = run(words, world.log, first=None if remount else partial(limit_files, room // 4))
                outcome = REFUSED if is_refused(ended) else FAILED
                tally.note("a full disk", job.name, outcome, describe(ended))
                if remount:
                    remount("size=1g")
                second = run(words, world.log)
                same = second.status == 0 and digests_in(out) == expected.made
                tally.note("space after a full disk", job.name, EQUAL if same else FAILED, describe(second))


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Optional[Callable[[str], Any]]]:
    """Context manager that mounts a temporary file system in a folder, if the user may do that.

    Args:
        folder: folder to mount the file system in.
        options: mount options, such as "size=1g".

    Yields:
        Function that remounts the file system with other options, or None if nothing was mounted.
    """
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    may = os.geteuid() == 0 and shutil.which("mount")
    if not may or subprocess.run(words, stderr=subprocess.DEVNULL).returncode:
        yield None
        return
    try:
        yield lambda changed: subprocess.run(["mount", "-o", f"remount,{changed}", str(folder)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def limit_files(size: int) -> None:
    """Limit the size of files that this process writes, as a substitute for a full disk.

    Args:
        size: maximum size in bytes.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def read_only(world: World, tally: Tally, times: Callable[[int], int], seed: int) -> None:
    """Run each command in a read-only folder, where it must be refused.

    For root, the folder is mounted read-only. For other users, it lacks the permission to write. The
    arguments are those of :func:`kills.kills`.
    """
    for job in JOBS:
        for _ in range(times(1)):
            world.empty_folder()
            with mounted(world.now, "size=1g") as remount:
                out = fresh_folder(world, job, is_empty=True)
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
            tally.note(
                "a read-only folder", job.name, REFUSED if good else FAILED, f"{left} {describe(ended)}"
            )


def vanishing(world: World, tally: Tally, times: Callable[[int], int], seed: int) -> None:
    """Remove the output folder just before one of the command's file operations.

    The arguments are those of :func:`kills.kills`.
    """
    for job in JOBS:
        number = times(2)
        if not number:
            continue
        expected = run_undisturbed(world, job)
        for turn in range(number):
            # Not at one of the last operations, which only remove temporary files.
            at = seeded(seed, "vanishing", job.name, turn).randint(1, max(1, expected.operations * 9 // 10))
            gone = watching_writes(at, partial(shutil.rmtree, str(world.now), ignore_errors=True))
            out = fresh_folder(world, job)
            ended = run(job.words(world, out), world.log, first=gone)
            made = digests_in(out) if world.now.exists() else {}
            if ended.status == 0 and made == expected.made:
                outcome = EQUAL
            elif ended.status == 0 and made and made.items() <= expected.made.items():
                outcome = UNPROTECTED  # removed after the other files were written
            else:
                outcome = REFUSED if is_refused(ended) else FAILED
            tally.note("a folder that is removed", job.name, outcome, f"at operation {at}: {describe(ended)}")


def two_at_once(world: World, tally: Tally, times: Callable[[int], int], seed: int) -> None:
    """Start a second command in the output folder of a running command.

    The second command must be refused. The first must equal an undisturbed run. The arguments are those of
    :func:`kills.kills`.
    """
    for job in JOBS:
        number = 0 if job.name in RENAMED_AT_ONCE else times(2)
        if not number:
            continue
        expected = run_undisturbed(world, job)
        for _ in range(number):
            out = fresh_folder(world, job)
            words = job.words(world, out)
            first = start(words, world.log)
            _stop_when_locked(out, first)
            # Another seed makes other files than the first command.
            other = [*words, "--seed", "2"] if job.name == "fairseq-train" else words
            second = run(other, world.folder / "log2")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(first, signal.SIGCONT)
            status = wait(first)
            same = status == 0 and digests_in(out) == expected.made
            good = same and is_refused(second)
            detail = f"{status} {describe(second)}"
            tally.note("two commands in one folder", job.name, REFUSED if good else FAILED, detail)


def _stop_when_locked(out: Path, process: int) -> None:
    """Send SIGSTOP to a command as soon as it has locked its output folder.

    Args:
        out: output folder.
        process: process id of the command, which leads a process group.
    """
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
