"""A record of finished steps in an output folder, so that a command started again does only what is left."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from luna_fairseq.errors import InputError
from luna_fairseq.files.sole_writer import claim
from luna_fairseq.files.writing import write_text
from luna_fairseq.progress import say


class FinishedSteps:
    """Which steps stand finished in ``folder``, kept in one JSON file there.

    A step is finished if it was recorded with the same key (a digest of its input and options) and if every
    file it wrote is still there with the size it had.

    Args:
        folder: the output folder, made if need be.
        name: file name of the record.
        owned: names of files that only a folder of ours may hold.

    Raises:
        InputError: the folder cannot be written to, is written to by another process, holds files of others,
            or holds a broken record.
    """

    def __init__(self, folder: Path, name: str, owned: Iterable[str] = ()) -> None:
        self.folder = folder
        self._path = folder / name
        self._steps: Dict[str, Any] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            claim(folder)
            if not self._path.exists():
                foreign = next((folder / one for one in owned if (folder / one).exists()), None)
                if foreign is not None:
                    raise InputError(
                        f"{foreign} is there already, from another program: give an empty folder"
                    )
                self._save()
            self._steps = _checked(json.loads(self._path.read_text(encoding="utf-8")))
        except InputError:
            raise
        except OSError as error:
            raise InputError(f"cannot write to {folder}: {error.strerror}") from error
        except ValueError as error:  # no JSON, no UTF-8, or no record
            raise InputError(
                f"{self._path} is broken: remove it together with the folder's contents"
            ) from error

    def find(self, step: str, key: str) -> Optional[Dict[str, Any]]:
        """What was recorded with the step (see record), or None if it is to be done (again)."""
        known = self._steps.get(step)
        if known is None or known["key"] != key:
            return None
        for name, size in known["files"].items():
            path = self.folder / name
            if not path.is_file() or path.stat().st_size != size:
                return None
        return known["facts"]

    def facts(self, step: str) -> Dict[str, Any]:
        """What was recorded with the step, whatever its key; nothing where it was not."""
        return self._steps.get(step, {}).get("facts", {})

    def record(self, step: str, key: str, files: List[str], facts: Dict[str, Any]) -> None:
        """Record a step as finished, and remove what it wrote with another input and not with this one.

        Args:
            step: its name.
            key: digest of its input and options.
            files: what it wrote, relative to the folder.
            facts: what is to be known about it later; anything JSON can hold.
        """
        sizes = {name: (self.folder / name).stat().st_size for name in files}
        left_over = set(self._steps.get(step, {}).get("files", ())).difference(
            sizes, *(known["files"] for other, known in self._steps.items() if other != step)
        )
        for name in left_over:
            (self.folder / name).unlink(missing_ok=True)
        self._steps[step] = {"key": key, "files": sizes, "facts": facts}
        self._save()

    def do(
        self, step: str, key: str, work: Callable[[], Tuple[List[str], Dict[str, Any]]], says: bool = True
    ) -> Dict[str, Any]:
        """Do the step unless it is finished, and record it; what is known about it.

        Args:
            step, key: as in record.
            work: does the step; gives the files and facts to record.
            says: print which of the two it is (default: True); the command itself may.
        """
        facts = self.find(step, key)
        if says:
            say(f"{step}: finished before" if facts is not None else f"{step} ...")
        if facts is None:
            if step in self._steps:  # its files are about to change; their names are kept
                self._steps[step]["key"] = None
                self._save()
            files, facts = work()
            self.record(step, key, files, facts)
        return facts

    def _save(self) -> None:
        write_text(self._path, json.dumps(self._steps, indent=1))


def _checked(steps: Any) -> Dict[str, Any]:
    """Raises ValueError for what is no record."""
    found: List[Any] = list(steps.values()) if isinstance(steps, dict) else [None]
    for step in found:
        whole = isinstance(step, dict) and {"key", "files", "facts"}.issubset(step)
        if not whole or not isinstance(step["files"], dict):
            raise ValueError("no record of steps")
    return steps


def digest(*values: Any) -> str:
    """SHA-256 of values that JSON can hold."""
    return hashlib.sha256(json.dumps(values).encode("utf-8")).hexdigest()


def stamps(paths: Iterable[Path]) -> List[List[Any]]:
    """Name, size and time of change of files, for a key: what they hold is then taken to be the same."""
    return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]
