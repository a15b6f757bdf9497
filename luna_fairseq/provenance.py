"""Version and commit of this package, for training logs and checkpoints."""

import functools
import re
from pathlib import Path
from typing import Optional

import luna_fairseq

KEY = "luna_fairseq"  # in a checkpoint's extra_state


@functools.lru_cache(maxsize=None)
def provenance() -> str:
    """Return the version and the commit of this package, such as "luna_fairseq 0.2.0 (commit 84fdfa5...)".

    Outside a git checkout, the commit is omitted. The result is cached for the life of the process.
    """
    found = commit(Path(luna_fairseq.__file__).resolve().parents[1] / ".git")
    return f"luna_fairseq {luna_fairseq.__version__}{f' (commit {found})' if found else ''}"


def commit(git: Path) -> Optional[str]:
    """Return the hash of the checked-out commit, or None outside a git checkout.

    ``git`` is the path ``.git`` of the checkout, which is read without running git.
    """
    try:
        if git.is_file():
            git = git.parent / git.read_text(encoding="utf-8").partition("gitdir:")[2].strip()
        found = _read_line(git / "HEAD")
        if found.startswith("ref: "):
            branch = found[len("ref: ") :]
            shared = git / _read_line(git / "commondir") if (git / "commondir").is_file() else git
            if (shared / branch).is_file():
                found = _read_line(shared / branch)
            else:
                lines = _read_line(shared / "packed-refs").splitlines()
                found = next((line.split()[0] for line in lines if line.endswith(f" {branch}")), "")
    except (OSError, UnicodeDecodeError):
        return None
    return found if re.fullmatch("[0-9a-f]{40,64}", found) else None


def _read_line(path: Path) -> str:
    """Return the content of a small text file, such as .git/HEAD, without surrounding whitespace."""
    return path.read_text(encoding="utf-8").strip()
