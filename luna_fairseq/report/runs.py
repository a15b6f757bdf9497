"""Find training runs below the given paths and read their logs, options and results."""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch

from luna_fairseq.errors import InputError
from luna_fairseq.progress import progress
from luna_fairseq.report.logs import SAVED, UPDATES, Log, Table, is_training_log, made_with, read_logs
from luna_fairseq.report.options import Options, architecture, flat, hydra_options, option

DEPTH = 4  # of folders below the one that is named: luna-lra-seeds' <task>/<model>/<seed>
LOG_SUFFIXES = {"", ".log", ".out", ".txt", ".json", ".err"}
CHECKPOINTS = ("checkpoint_last.pt", "checkpoint_best.pt")
SECONDS_AN_HOUR = 3600


@dataclass
class Run:
    """A training run.

    Attributes:
        name: name on the page
        folder: folder of the log or of the checkpoints
        log: contents of the logs; empty if the run left only checkpoints
        files: paths of the logs
        options: fairseq's options from the log, hydra's files or a checkpoint; None if unknown
        result: result that luna-lra-seeds stored, or None
        notes: remarks about missing information, shown on the page
    """

    name: str
    folder: Path
    log: Log
    files: List[Path] = field(default_factory=list)
    options: Optional[Options] = None
    result: Optional[Dict[str, Any]] = None
    notes: List[str] = field(default_factory=list)

    @property
    def updates(self) -> int:
        """Number of updates that the logs report."""
        tables = self.log.tables.values()
        return int(max((table[UPDATES][-1] for table in tables if len(table[UPDATES])), default=0))

    def best(self) -> Optional[Tuple[str, float, int]]:
        """Return name, value and update of the best figure for choosing a checkpoint, or None."""
        metric = str(option(self.options, "best_checkpoint_metric") or "loss")
        sign = 1 if option(self.options, "maximize_best_checkpoint_metric") else -1
        for kind, name in (*((kind, metric) for kind in self.log.subsets), (SAVED, "score")):
            table = self.log.tables.get(kind, {})
            numbers = np.flatnonzero(np.isfinite(table.get(name, ())))
            if len(numbers):
                place = numbers[(sign * table[name][numbers]).argmax()]
                return metric, float(table[name][place]), int(table[UPDATES][place])
        return None


def find_runs(paths: Sequence[Path]) -> List[Run]:
    """Find the runs below ``paths``. Each path is a folder, a log, or NAME=PATH.

    Raises:
        InputError: a path does not exist, or there is no run below it
    """
    runs: List[Run] = []
    for given in paths:
        name, path = _named(given)
        logs = progress(_logs_below(path), "read", "runs")
        found = [_read(*place) for place in logs] or _from_checkpoint(path)
        if not found:
            raise InputError(
                f"{path} holds no run: no log of fairseq-train and no checkpoint. Give the folder of "
                "--save-dir, or the log itself (fairseq-train ... 2>&1 | tee train.log)"
            )
        for run in found:
            below = os.path.relpath(run.name, str(path)) if len(found) > 1 else ""
            run.name = "/".join(part for part in (name or _last_part(path), below) if part)
        runs += found
    return _distinct(runs)


def _named(given: Path) -> Tuple[str, Path]:
    """Split NAME=PATH into name and path. Without a name, the name is empty."""
    name, path = "", given
    if not given.exists() and "=" in str(given):
        name, _, rest = str(given).partition("=")
        path = Path(rest)
    if not path.exists():
        raise InputError(f"{path} does not exist: give the folder or the log of a run of fairseq-train")
    return name, path


def _last_part(path: Path) -> str:
    """Return the last part of a path that is not a generic name, such as ``checkpoints``."""
    resolved = path.resolve()
    stem = resolved.name if resolved.is_dir() else resolved.stem
    return resolved.parent.name if stem in ("train", "hydra_train", "checkpoints", "log") else stem


def _distinct(runs: List[Run]) -> List[Run]:
    """Make the names of runs unique: prefix the parent folder's name, then append a number."""
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name = f"{run.folder.resolve().parent.name}/{run.name}"
    seen: Counter = Counter()
    for run in runs:
        seen[run.name] += 1
        if seen[run.name] > 1:
            run.name += f" ({seen[run.name]})"
    return runs


def _logs_below(path: Path) -> Iterator[Tuple[str, List[Path]]]:
    """Yield the path of each run and its logs, oldest first."""
    if path.is_file():
        if path.suffix != ".pt":
            yield str(path), [path]
        return
    for folder, folders, names in os.walk(str(path)):
        here = Path(folder)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if len(here.relative_to(path).parts) >= DEPTH:
            folders.clear()
        candidates = [here / name for name in sorted(names) if Path(name).suffix in LOG_SUFFIXES]
        logs = [file for file in candidates if file.is_file() and is_training_log(file)]
        groups = _by_run(logs)
        for group in groups:
            place = here if len(groups) == 1 else group[-1].with_suffix("")
            yield str(place), sorted(group, key=lambda file: file.stat().st_mtime)


def _by_run(logs: List[Path]) -> List[List[Path]]:
    """Group the logs of one folder. Logs with the same folder of checkpoints belong to one run."""
    groups: Dict[Any, List[Path]] = {}
    for log in logs:
        kept = option(read_logs([log]).options, "save_dir") if len(logs) > 1 else None
        groups.setdefault(kept, []).append(log)
    if None in groups and len(groups) == 2:  # a log without options beside one that has them
        rest = groups.pop(None)
        next(iter(groups.values())).extend(rest)
    return list(groups.values())


def _read(place: str, files: List[Path]) -> Run:
    log, folder = read_logs(files), files[-1].parent
    options = log.options or hydra_options(folder)
    run = Run(place, folder, log, files, options, _result(folder / "result.json"))
    if run.options is None:
        why = "no checkpoint lies beside it"
        try:
            for found in _from_checkpoint(folder):
                run.options = found.options
        except InputError as error:  # the log can be shown without the options
            why = str(error)
        if run.options is None:
            run.notes.append(f"The log does not tell the options, and {why}.")
    if log.cut:
        run.notes.append("The log ends in the middle of a line, which was left out.")
    if not log.training:
        run.notes.append(
            "The log has no lines of training (--log-format none): only what was saved is shown."
        )
    return run


def _from_checkpoint(path: Path) -> List[Run]:
    """Return a list with the run of a checkpoint, or an empty list if there is no checkpoint."""
    folders = [path, path / "checkpoints"] if path.is_dir() else []
    files = [path] if path.suffix == ".pt" else [folder / name for folder in folders for name in CHECKPOINTS]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return []
    state = _load(file)
    options = flat(state["cfg"] if state.get("cfg") is not None else state.get("args") or {})
    run = Run(str(path), file.parent, Log(), [], options)
    updates = (state.get("optimizer_history") or [{}])[-1].get("num_updates")
    score = state.get("extra_state", {}).get("val_loss")
    if updates is not None and score is not None:
        run.log.tables[SAVED] = {UPDATES: np.array([float(updates)]), "score": np.array([float(score)])}
    run.log.made_with = made_with(state.get("extra_state", {}).get("luna_fairseq"))
    run.notes.append(f"No log was found: this is what {file.name} tells.")
    return [run]


def _load(file: Path) -> Dict[str, Any]:
    # torch.load then accepts the classes that fairseq stores
    import luna_fairseq.engine  # noqa: F401
    from luna_fairseq.files.checkpoints import why_unreadable

    try:
        try:
            state = torch.load(str(file), map_location="cpu", mmap=True)
        except (TypeError, RuntimeError):  # an older torch, or a checkpoint in the older format
            state = torch.load(str(file), map_location="cpu")
    except Exception as error:  # whatever pickle makes of a damaged file
        raise InputError(f"{file} {why_unreadable(file, error)}") from None
    if not isinstance(state, dict) or "model" not in state:
        raise InputError(f"{file} is no checkpoint of fairseq")
    return state


def _result(path: Path) -> Optional[Dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "accuracy" in found else None


def summary(run: Run) -> Dict[str, str]:
    """Return the cells of the run in the table of runs, by heading."""
    row = {"Architecture": architecture(run.options), "State": _state(run), "Updates": f"{run.updates:,}"}
    inner = run.log.training
    if len(inner.get("epoch", ())):
        row["Epochs"] = f"{inner['epoch'][-1]:.1f}"
    if len(inner.get("wall", ())):
        row["Hours"] = f"{hours(inner)[-1]:.2f}"
    if "wps" in inner:
        speeds = inner["wps"][inner["wps"] > 0].tolist()  # the first line of a run has none
        row["Tokens/s (median)"] = f"{statistics.median_high(speeds or [0.0]):,.0f}"
    best = run.best()
    if best:
        row[f"Best {best[0]}"] = f"{best[1]:g} (update {best[2]:,})"
    for kind in run.log.subsets:
        table = run.log.tables[kind]
        for figure in ("ppl", "bleu", "accuracy"):
            if figure in table:
                row[f"Last {figure}, {kind}"] = f"{table[figure][-1]:g}"
    if run.log.parameters:
        row["Parameters"] = f"{run.log.parameters:,}"
    row["Seed"] = str(option(run.options, "seed") or "")
    row["luna_fairseq"] = run.log.made_with or ""
    return {name: text for name, text in row.items() if text}


def hours(table: Table) -> np.ndarray:
    """Return the hours of training up to each line of a table that has ``wall``.

    After a restart, fairseq's clock starts again or stays at 0. The ``train_wall`` of such a line counts
    instead.
    """
    step = np.diff(np.nan_to_num(table["wall"]), prepend=0)
    spent = np.nan_to_num(table.get("train_wall", np.zeros_like(step)))
    return np.cumsum(np.where(step > 0, step, spent)) / SECONDS_AN_HOUR


def _state(run: Run) -> str:
    if run.log.finished:
        return "finished"
    most = option(run.options, "max_update")
    if most and run.updates:
        return f"{100 * run.updates / float(most):.0f}% of {int(most):,} updates"
    return "not finished" if run.files else ""
