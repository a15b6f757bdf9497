"""One process at a time in a folder of results."""

import errno
import os
import time
from pathlib import Path
from typing import Dict, Tuple

from luna_fairseq.errors import InputError

PATIENCE = 5.0  # seconds that a process that was killed may take to be gone
_held: Dict[Tuple[int, int], int] = {}


def claim(folder: Path) -> None:
    """Be the one process that writes to ``folder``, until this process ends. Raises InputError where another
    process has claimed the folder.

    Nothing is written: the folder itself is locked, and the lock goes with the process, whatever ends it. A
    file system without locks is left as it is.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return
    about = os.stat(str(folder))
    if (about.st_dev, about.st_ino) in _held:
        return
    handle = os.open(str(folder), os.O_RDONLY)
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _held[about.st_dev, about.st_ino] = handle
            return
        except OSError as error:
            is_claimed = error.errno in (errno.EAGAIN, errno.EACCES)
        if not is_claimed or time.monotonic() >= until:
            break
        time.sleep(0.1)
    os.close(handle)
    if is_claimed:
        raise InputError(
            f"another process is writing to {folder}: wait until it ends, or give another folder"
        )


def _leave_to_parent() -> None:
    """A forked process (a data loader's worker) may outlive its parent, and is not to hold the folder."""
    for handle in _held.values():
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
