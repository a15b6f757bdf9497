"""Record of a command's finished steps, so that the command does not repeat them after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from luna_fairseq.errors import InputError
from luna_fairseq.files.sole_writer import lock_folder
from luna_fairseq.files.writing import write_text
from luna_fairseq.progress import say


class FinishedSteps:
    """Record of the steps that a command has finished, as a JSON file in its output folder.

    Each step is recorded with a key, a checksum of its input and options. A step counts as finished if it is
    recorded with the same key, and its files still have the recorded sizes. The folder is locked against
    other processes.

    Args:
        folder: output folder, created if it does not exist.
        name: file name of the record.
        owned: names of files that the command writes. If any of them exists without a record, the folder
            belongs to another program.

    Raises:
        InputError: The folder is not writable, is used by another process, or belongs to another program.
            Also raised if the record is damaged.

    Example:
        >>> steps = FinishedSteps(Path("data-bin"), "steps.json")  # doctest: +SKIP
        >>> results = steps.do("encode", digest(options), encode)  # doctest: +SKIP
    """

    def __init__(self, folder: Path, name: str, owned: Iterable[str] = ()) -> None:
        self.folder = folder
        self._path = folder / name
        self._steps: Dict[str, Any] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock_folder(folder)
            if not self._path.exists():
                foreign = next((folder / one for one in owned if (folder / one).exists()), None)
                if foreign is not None:
                    raise InputError(
                        f"{foreign} already exists and belongs to another program. Use an empty folder."
                    )
                self._save()
            self._steps = _check_record(json.loads(self._path.read_text(encoding="utf-8")))
        except InputError:
            raise
        except OSError as error:
            raise InputError(f"cannot write to {folder}: {error.strerror}") from error
        except ValueError as error:  # no JSON, no UTF-8, or no record
            raise InputError(
                f"{self._path} is damaged. Remove this file and the other contents of the folder."
            ) from error

    def find(self, step: str, key: str) -> Optional[Dict[str, Any]]:
        """Return the recorded results of a step, or None if the step must run.

        A step must run if it is not recorded with this ``key``, a checksum of its input and options, or if
        one of its files is missing or has another size.
        """
        recorded = self._steps.get(step)
        if recorded is None or recorded["key"] != key:
            return None
        for name, size in recorded["files"].items():
            path = self.folder / name
            if not path.is_file() or path.stat().st_size != size:
                return None
        return recorded["facts"]

    def results(self, step: str) -> Dict[str, Any]:
        """Return the recorded results of a step, even if its input or options have changed since."""
        return self._steps.get(step, {}).get("facts", {})

    def record(self, step: str, key: str, files: List[str], results: Dict[str, Any]) -> None:
        """Record that a step is finished, and delete files that only its previous run wrote.

        ``key`` is a checksum of the step's input and options, ``files`` are the names of the written files,
        and ``results`` are values to store in the record.
        """
        sizes = {name: (self.folder / name).stat().st_size for name in files}
        outdated = set(self._steps.get(step, {}).get("files", ())).difference(
            sizes, *(recorded["files"] for other, recorded in self._steps.items() if other != step)
        )
        for name in outdated:
            (self.folder / name).unlink(missing_ok=True)
        self._steps[step] = {"key": key, "files": sizes, "facts": results}
        self._save()

    def do(
        self, step: str, key: str, work: Callable[[], Tuple[List[str], Dict[str, Any]]], announce: bool = True
    ) -> Dict[str, Any]:
        """Run and record a step unless it is already finished. Return its results.

        ``work`` runs the step, and returns the names of the written files and the results. ``key`` is a
        checksum of the step's input and options.
        """
        results = self.find(step, key)
        if announce:
            say(f"{step}: finished before" if results is not None else f"{step} ...")
        if results is None:
            if step in self._steps:  # the files change from here on, but record() needs their names
                self._steps[step]["key"] = None
                self._save()
            files, results = work()
            self.record(step, key, files, results)
        return results

    def _save(self) -> None:
        """Write the record of all finished steps to its JSON file, replacing the old record."""
        write_text(self._path, json.dumps(self._steps, indent=1))


def _check_record(steps: Any) -> Dict[str, Any]:
    """Return ``steps``, the parsed JSON of a record. Raise ValueError if the structure is wrong."""
    values: List[Any] = list(steps.values()) if isinstance(steps, dict) else [None]
    for step in values:
        is_complete = isinstance(step, dict) and {"key", "files", "facts"}.issubset(step)
        if not is_complete or not isinstance(step["files"], dict):
            raise ValueError("not a record of steps")
    return steps
