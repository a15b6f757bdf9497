"""Record the finished steps of a command in its output folder, so that it goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from luna_fairseq.errors import InputError
from luna_fairseq.files.sole_writer import claim
from luna_fairseq.files.writing import write_text
from luna_fairseq.progress import say


class FinishedSteps:
    """The finished steps of a command, recorded in one JSON file in its output folder.

    A step is finished if it was recorded with the same key, and if every file that it wrote still has its
    size. The key is a digest of the step's input and options (``checksums.digest``).

    Args:
        folder: the output folder; it is created if it does not exist.
        name: file name of the record.
        owned: names of files that show that the folder belongs to another program if it has no record.

    Raises:
        InputError: the folder cannot be written to, another process writes to it, it belongs to another
            program, or its record is damaged.
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
        """Return the facts recorded with the step, or None if the step must be done."""
        known = self._steps.get(step)
        if known is None or known["key"] != key:
            return None
        for name, size in known["files"].items():
            path = self.folder / name
            if not path.is_file() or path.stat().st_size != size:
                return None
        return known["facts"]

    def facts(self, step: str) -> Dict[str, Any]:
        """Return the facts recorded with the step under any key, or {} if it was never done."""
        return self._steps.get(step, {}).get("facts", {})

    def record(self, step: str, key: str, files: List[str], facts: Dict[str, Any]) -> None:
        """Record a step as finished, and remove its older files that it has not written again.

        Args:
            step: name of the step.
            key: digest of its input and options.
            files: names of the files that it wrote, relative to the folder.
            facts: values that later steps need, of types that JSON can hold.
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
        """Do and record the step unless it is finished, and return its facts.

        Args:
            step: name of the step.
            key: digest of its input and options.
            work: function that does the step, and returns the files and facts to record.
            says: print whether the step is done or was finished before (default: True).
        """
        facts = self.find(step, key)
        if says:
            say(f"{step}: finished before" if facts is not None else f"{step} ...")
        if facts is None:
            if step in self._steps:  # its files change now, and their names stay recorded
                self._steps[step]["key"] = None
                self._save()
            files, facts = work()
            self.record(step, key, files, facts)
        return facts

    def _save(self) -> None:
        write_text(self._path, json.dumps(self._steps, indent=1))


def _checked(steps: Any) -> Dict[str, Any]:
    """Return ``steps``. Raises ValueError if it is no record of steps."""
    found: List[Any] = list(steps.values()) if isinstance(steps, dict) else [None]
    for step in found:
        whole = isinstance(step, dict) and {"key", "files", "facts"}.issubset(step)
        if not whole or not isinstance(step["files"], dict):
            raise ValueError("no record of steps")
    return steps
