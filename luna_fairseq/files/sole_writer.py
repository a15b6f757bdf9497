"""Folder lock that only one process, together with its child processes, can hold."""

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Dict, Tuple

from luna_fairseq.errors import InputError

PATIENCE = 5.0  # seconds to wait, because a killed process may take a while to release its lock
# Environment variable that tells child processes which folders are locked on their behalf, as
# "DEVICE:INODE:HANDLE" separated by commas.
LOCKS = "LUNA_FAIRSEQ_LOCKS"

Key = Tuple[int, int]
_held: Dict[Key, int] = {}


def lock_folder(folder: Path) -> None:
    """Lock an existing folder against other processes, or raise InputError if another process has locked it.

    The lock belongs to an open file descriptor of the folder, so no lock file is written. The operating
    system releases the lock when all processes that hold the descriptor have ended: this process, a program
    that replaces it, and children that inherit :func:`handles`. A child of a process with the lock may write
    as well. The lock has no effect on file systems without locks.
    """
    key = _key(os.stat(str(folder)))
    if key in _held:
        return
    inherited = _inherited_locks()
    if key in inherited and _is_handle_of(inherited[key], key):
        _held[key] = inherited[key]
        return
    handle = os.open(str(folder), os.O_RDONLY)
    until = time.monotonic() + (0 if key in inherited else PATIENCE)
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.set_inheritable(handle, True)
            _held[key] = handle
            locks = {**inherited, **_held}
            os.environ[LOCKS] = ",".join(f"{device}:{inode}:{fd}" for (device, inode), fd in locks.items())
            return
        except OSError as error:
            is_claimed = error.errno in (errno.EAGAIN, errno.EACCES)
        if not is_claimed or time.monotonic() >= until:
            break
        time.sleep(0.1)
    os.close(handle)
    if is_claimed and key not in inherited:
        raise InputError(
            f"another process is writing to {folder}. Wait until it ends, or use another folder."
        )


def handles() -> Tuple[int, ...]:
    """Return the file descriptors of locked folders. Child processes that inherit them keep the locks."""
    return tuple(_held.values())


def _key(status: os.stat_result) -> Key:
    return status.st_dev, status.st_ino


def _inherited_locks() -> Dict[Key, int]:
    """Return the file descriptors of folders locked by ancestor processes, keyed by (device, inode)."""
    locks = [tuple(map(int, lock.split(":"))) for lock in os.environ.get(LOCKS, "").split(",") if lock]
    return {(device, inode): handle for device, inode, handle in locks}


def _is_handle_of(handle: int, key: Key) -> bool:
    """Return True if a file descriptor is open in this process and belongs to the folder (device, inode)."""
    try:
        return _key(os.fstat(handle)) == key
    except OSError:
        return False


def _release_in_child() -> None:
    """Close lock descriptors in a forked process, which would keep the locks if it outlived its parent."""
    for handle in _held.values():
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_release_in_child)
