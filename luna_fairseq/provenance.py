"""Which version of this package trains a model: in the log of the training, and in its checkpoints."""

import functools
import re
from pathlib import Path
from typing import Optional

import luna_fairseq

KEY = "luna_fairseq"  # in a checkpoint's extra_state


@functools.lru_cache(maxsize=None)
def provenance() -> str:
    """As "luna_fairseq 0.1.0 (commit ...)", without the commit where this is no checkout. Found once: the
    checkout may change while the process runs what it was."""
    found = commit(Path(luna_fairseq.__file__).resolve().parents[1] / ".git")
    return f"luna_fairseq {luna_fairseq.__version__}{f' (commit {found})' if found else ''}"


def commit(git: Path) -> Optional[str]:
    """The commit that is checked out, None where there is no checkout; files may differ from it.

    Read from git's own files: the machine may have no git.

    Args:
        git: the checkout's ``.git``, a folder, or in a second worktree a file that names one.
    """
    try:
        if git.is_file():
            git = git.parent / git.read_text(encoding="utf-8").partition("gitdir:")[2].strip()
        found = _line(git / "HEAD")
        if found.startswith("ref: "):
            branch = found[len("ref: ") :]
            shared = git / _line(git / "commondir") if (git / "commondir").is_file() else git
            if (shared / branch).is_file():
                found = _line(shared / branch)
            else:  # a line in the file of all
                lines = _line(shared / "packed-refs").splitlines()
                found = next((line.split()[0] for line in lines if line.endswith(f" {branch}")), "")
    except (OSError, UnicodeDecodeError):
        return None
    return found if re.fullmatch("[0-9a-f]{40,64}", found) else None


def _line(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()
