"""Lock that lets only one process write to a folder of results."""

import errno
import os
import time
from pathlib import Path
from typing import Dict, Tuple

from luna_fairseq.errors import InputError

PATIENCE = 5.0  # seconds to wait, because a killed process may take a while to release its lock
_held: Dict[Tuple[int, int], int] = {}


def lock_folder(folder: Path) -> None:
    """Lock a folder against other processes until this process ends.

    The lock is on the folder itself, without a lock file. The operating system releases the lock when the
    process ends, for whatever reason. If another process holds the lock, this function waits up to five
    seconds. It has no effect on Windows and on file systems without locks.

    Args:
        folder: path of an existing folder.

    Raises:
        InputError: Another process holds the lock.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return
    status = os.stat(str(folder))
    if (status.st_dev, status.st_ino) in _held:
        return
    handle = os.open(str(folder), os.O_RDONLY)
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _held[status.st_dev, status.st_ino] = handle
            return
        except OSError as error:
            is_claimed = error.errno in (errno.EAGAIN, errno.EACCES)
        if not is_claimed or time.monotonic() >= until:
            break
        time.sleep(0.1)
    os.close(handle)
    if is_claimed:
        raise InputError(
            f"another process is writing to {folder}. Wait until it ends, or use another folder."
        )


def _release_in_child() -> None:
    """Give up all locks in a forked process.

    Such a process, for example a worker of a data loader, may outlive its parent and would keep the locks.
    """
    for handle in _held.values():
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
