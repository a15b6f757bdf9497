"""Training runs found in folders, with the logs, options and results of each run."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from luna_fairseq.errors import InputError
from luna_fairseq.lra.results import RESULT, Result, read_result
from luna_fairseq.progress import progress, say
from luna_fairseq.report.logs import (
    EPOCH,
    SAVED,
    UPDATES,
    Log,
    Table,
    extract_version,
    is_training_log,
    read_logs,
    start_time,
)
from luna_fairseq.report.options import Options, architecture, flatten_options, get_option, hydra_options

# Number of subfolder levels to search. luna-lra-seeds writes <task>/<model>/<seed>.
DEPTH = 4
# Endings that are not a part of a run's name. A log may have any other ending, as in train.luna.
GENERIC_SUFFIXES = {".log", ".out", ".txt", ".json", ".err", ".pt"}
# Endings of large files that are not searched for training log lines.
BINARY_SUFFIXES = {".pt", ".bin", ".idx", ".npy", ".npz", ".safetensors", ".onnx"}
CHECKPOINTS = ("checkpoint_last.pt", "checkpoint_best.pt")
SECONDS_AN_HOUR = 3600


@dataclass
class Run:
    """Training run with the contents of its logs.

    Attributes:
        name: name of the run, as shown on the HTML page.
        folder: folder that contains the log or the checkpoints.
        log: merged contents of the logs. Empty if the run left only checkpoints.
        files: paths of the logs, oldest first.
        options: options of fairseq-train, keyed by ``group.name``, or None if they are unknown.
        result: result that luna-lra-seeds wrote, or None.
        notes: remarks about missing information, to show on the HTML page.
    """

    name: str
    folder: Path
    log: Log
    files: List[Path] = field(default_factory=list)
    options: Optional[Options] = None
    result: Optional[Result] = None
    notes: List[str] = field(default_factory=list)

    @property
    def updates(self) -> int:
        """Number of the last update in the logs, or 0 if there is none."""
        tables = self.log.tables.values()
        return int(max((table[UPDATES][-1] for table in tables if len(table[UPDATES])), default=0))

    def best(self) -> Optional[Tuple[str, float, int]]:
        """Return (metric, best validation value, update of this value), or None if no value is finite."""
        metric = str(get_option(self.options, "best_checkpoint_metric") or "loss")
        sign = 1 if get_option(self.options, "maximize_best_checkpoint_metric") else -1
        for kind, column in (*((subset, metric) for subset in self.log.subsets), (SAVED, "score")):
            table = self.log.tables.get(kind, {})
            finite = np.flatnonzero(np.isfinite(table.get(column, ())))
            if len(finite):
                best = finite[(sign * table[column][finite]).argmax()]
                return metric, float(table[column][best]), int(table[UPDATES][best])
        return None


def find_runs(paths: Sequence[Path]) -> List[Run]:
    """Find and read training runs in folders, up to four levels deep. Raise InputError if a path has none.

    Args:
        paths: folders, log files or checkpoints. ``NAME=PATH`` also sets the name of the run, which otherwise
            comes from its folder.

    Example:
        >>> [run.name for run in find_runs([Path("checkpoints")])]  # doctest: +SKIP
        ['checkpoints/luna', 'checkpoints/transformer']
    """
    runs: List[Run] = []
    for named_path in paths:
        name, path = _split_name(named_path)
        logs = progress(_find_logs(path), "read", "runs")
        found = [_read_run(run_path, files) for run_path, files in logs]
        described = {folder.resolve() for run in found for folder in _checkpoint_folders(run)}
        unreadable: List[InputError] = []
        for file in _find_checkpoints(path):
            if file.parent.resolve() not in described:
                try:
                    found.append(_read_checkpoint_run(file))
                except InputError as error:
                    unreadable.append(error)
        if unreadable and not found:
            raise unreadable[0]
        for reason in unreadable:
            say(f"Skipped a run: {reason}")
        if not found:
            raise InputError(
                f"{path} contains no training run: neither a log of fairseq-train nor a checkpoint. Give the "
                "folder of --save-dir, or the log itself (fairseq-train ... 2>&1 | tee train.log)."
            )
        for run in found:
            relative_path = os.path.relpath(run.name, str(path)) if len(found) > 1 else ""
            run.name = "/".join(part for part in (name or _default_name(path), relative_path) if part)
        runs += found
    return _make_names_unique(runs)


def _split_name(named_path: Path) -> Tuple[str, Path]:
    """Split a ``NAME=PATH`` argument into name and path. Without ``NAME=``, the name is ""."""
    name, path = "", named_path
    if not named_path.exists() and "=" in str(named_path):
        name, _, rest = str(named_path).partition("=")
        path = Path(rest)
    if not path.exists():
        raise InputError(f"{path} does not exist. Give the folder or the log of a run of fairseq-train.")
    return name, path


def _default_name(path: Path) -> str:
    """Return the last part of a path, or the parent's name if that part is generic, such as "checkpoints"."""
    resolved = path.resolve()
    name = resolved.name if resolved.is_dir() else _name_of(resolved)
    return resolved.parent.name if name in ("train", "hydra_train", "checkpoints", "log") else name


def _name_of(file: Path) -> str:
    """Return the name of a log or a checkpoint without a generic ending, such as ".log"."""
    return file.stem if file.suffix in GENERIC_SUFFIXES else file.name


def _make_names_unique(runs: List[Run]) -> List[Run]:
    """Rename runs with equal names in place: add the parent folder and, if necessary, a number."""
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


def _find_logs(path: Path) -> Iterator[Tuple[str, List[Path]]]:
    """Yield (path, logs from oldest to newest) for each training run in a folder or in a single log file."""
    if path.is_file():
        if path.suffix != ".pt":
            yield str(path), [path]
        return
    for folder, files in _walk(path):
        logs = [file for file in files if file.suffix not in BINARY_SUFFIXES and is_training_log(file)]
        groups = _group_by_run(logs)
        for group in groups:
            run_path = folder if len(groups) == 1 else folder / _name_of(group[-1])
            yield str(run_path), sorted(group, key=start_time)


def _find_checkpoints(path: Path) -> Iterator[Path]:
    """Yield a checkpoint of each folder that has one, or the path itself if it is a checkpoint."""
    if path.is_file() and path.suffix == ".pt":
        yield path
    for folder, _ in _walk(path):
        file = _choose_checkpoint(folder)
        if file is not None:
            yield file


def _walk(path: Path) -> Iterator[Tuple[Path, List[Path]]]:
    """Yield a folder and its subfolders up to four levels deep, each with its files. Skip hidden folders."""
    for folder_name, subfolders, names in os.walk(str(path)):
        folder = Path(folder_name)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        if len(folder.relative_to(path).parts) >= DEPTH:
            subfolders.clear()
        yield folder, [folder / name for name in sorted(names) if (folder / name).is_file()]


def _choose_checkpoint(*folders: Path) -> Optional[Path]:
    """Return the last or the best checkpoint in the first folder that has one, or None."""
    files = (folder / name for folder in folders for name in CHECKPOINTS)
    return next((file for file in files if file.is_file()), None)


def _checkpoint_folders(run: Run) -> List[Path]:
    """Return the folders that may contain the checkpoints of a run that has logs."""
    save_dir = get_option(run.options, "save_dir")
    return [run.folder, run.folder / "checkpoints", *([Path(save_dir)] if save_dir else [])]


def _group_by_run(logs: List[Path]) -> List[List[Path]]:
    """Group a folder's logs by training run, which their option ``--save-dir`` identifies.

    If all other logs belong to one run, logs that do not print their options are added to this run.
    """
    groups: Dict[Any, List[Path]] = {}
    for log in logs:
        save_dir = get_option(read_logs([log]).options, "save_dir") if len(logs) > 1 else None
        groups.setdefault(save_dir, []).append(log)
    if None in groups and len(groups) == 2:
        # Logs without options belong to the only known run.
        logs_without_options = groups.pop(None)
        next(iter(groups.values())).extend(logs_without_options)
    return list(groups.values())


def _read_run(path: str, files: List[Path]) -> Run:
    """Read a run from its log files, which must be sorted from oldest to newest.

    ``path`` becomes the run's name. Options that the logs lack are read from hydra's files or from a
    checkpoint in the folder.
    """
    log, folder = read_logs(files), files[-1].parent
    options = log.options or hydra_options(folder)
    run = Run(path, folder, log, files, options, _read_result(folder / RESULT))
    if run.options is None:
        reason, checkpoint = "there is no checkpoint beside it", _choose_checkpoint(*_checkpoint_folders(run))
        try:
            if checkpoint is not None:
                run.options = _read_checkpoint_run(checkpoint).options
        except InputError as error:  # The log can still be shown without the options.
            reason = str(error).rstrip(".")
        if run.options is None:
            run.notes.append(f"The log does not contain the options, and {reason}.")
    if log.is_truncated:
        run.notes.append("The last line of the log is incomplete and was skipped.")
    if not log.training:
        run.notes.append(
            "The log has no training statistics (--log-format none). Only saved checkpoints are shown."
        )
    return run


def _read_checkpoint_run(file: Path) -> Run:
    """Read the options and the validation score of a run from a checkpoint."""
    state = _load_checkpoint(file)
    options = flatten_options(state["cfg"] if state.get("cfg") is not None else state.get("args") or {})
    run = Run(str(file.parent), file.parent, Log(), [], options)
    updates = (state.get("optimizer_history") or [{}])[-1].get("num_updates")
    score = state.get("extra_state", {}).get("val_loss")
    if updates is not None:
        score = np.nan if score is None else float(score)  # with --disable-validation there is none
        run.log.tables[SAVED] = {UPDATES: np.array([float(updates)]), "score": np.array([score])}
    run.log.version = extract_version(state.get("extra_state", {}).get("luna_fairseq"))
    run.notes.append(f"No log was found. The figures come from {file.name}.")
    return run


def _load_checkpoint(file: Path) -> Dict[str, Any]:
    """Load a fairseq checkpoint on the CPU. Raise InputError if the file is damaged or not a checkpoint."""
    import torch  # takes seconds, and most runs are read from their logs alone

    # Makes torch.load accept the classes stored by fairseq.
    import luna_fairseq.engine  # noqa: F401
    from luna_fairseq.files.checkpoints import explain_unreadable

    try:
        try:
            state = torch.load(str(file), map_location="cpu", mmap=True)
        except (TypeError, RuntimeError):  # an older version of torch, or a checkpoint in the older format
            state = torch.load(str(file), map_location="cpu")
    except Exception as error:  # On damaged files, pickle raises errors of many types.
        raise InputError(f"{file} {explain_unreadable(file, error)}") from None
    if not isinstance(state, dict) or "model" not in state:
        raise InputError(f"{file} is not a checkpoint of fairseq. Give a file that fairseq-train wrote.")
    return state


def _read_result(path: Path) -> Optional[Result]:
    """Read the test result that luna-lra-seeds wrote, or return None if the file is missing or damaged."""
    try:
        return read_result(path)
    except (OSError, InputError):
        return None


def summarize_run(run: Run) -> Dict[str, str]:
    """Return a run's known values for the overview table, as text keyed by heading, such as "Updates"."""
    cells = {
        "Architecture": architecture(run.options),
        "State": _describe_progress(run),
        "Updates": f"{run.updates:,}",
    }
    training = run.log.training
    if len(training.get("epoch", ())):
        cells["Epochs"] = f"{_count_epochs(run.log):.1f}"
    if len(training.get("wall", ())):
        cells["Hours"] = f"{_count_hours(run.log):.2f}"
    if "wps" in training:
        speeds = training["wps"][training["wps"] > 0].tolist()  # The first line of a run reports speed 0.
        cells["Tokens/s (median)"] = f"{statistics.median_high(speeds or [0.0]):,.0f}"
    best = run.best()
    if best:
        metric, value, update = best
        cells[f"Best {metric}"] = f"{value:g} (update {update:,})"
    for subset in run.log.subsets:
        table = run.log.tables[subset]
        for figure in ("ppl", "bleu", "accuracy"):
            if figure in table:
                cells[f"Last {figure}, {subset}"] = f"{table[figure][-1]:g}"
    if run.log.parameters:
        cells["Parameters"] = f"{run.log.parameters:,}"
    seed = get_option(run.options, "seed")
    cells["Seed"] = "" if seed is None else str(seed)
    cells["luna_fairseq"] = run.log.version or ""
    return {heading: text for heading, text in cells.items() if text}


def _count_epochs(log: Log) -> float:
    """Return the number of epochs up to the last update, also if its only line is that of the epoch."""
    training, epochs = log.training, log.tables.get(EPOCH, log.training)
    # The line of an epoch may also follow --max-update within the epoch.
    estimate = training["epoch"][-1] * epochs[UPDATES][-1] / training[UPDATES][-1]
    return float(max(training["epoch"][-1], min(estimate, epochs["epoch"][-1])))


def _count_hours(log: Log) -> float:
    """Return the hours of training up to the last line within epochs or of an epoch."""
    training, epochs = log.training, log.tables.get(EPOCH, log.training)
    hours = float(training_hours(training)[-1])
    if "wall" in epochs and epochs[UPDATES][-1] >= training[UPDATES][-1]:
        hours += max(0.0, float(epochs["wall"][-1] - training["wall"][-1])) / SECONDS_AN_HOUR
    return hours


def training_hours(table: Table) -> np.ndarray:
    """Return the cumulative hours of training at each line of a log.

    The column ``wall`` restarts at 0 when a run is resumed, and may stay at 0. Where it does not increase,
    the time since the previous line is read from the column ``train_wall``.
    """
    elapsed = np.diff(np.nan_to_num(table["wall"]), prepend=0)
    train_wall = np.nan_to_num(table.get("train_wall", np.zeros_like(elapsed)))
    return np.cumsum(np.where(elapsed > 0, elapsed, train_wall)) / SECONDS_AN_HOUR


def _describe_progress(run: Run) -> str:
    """Describe a run's progress, such as "finished" or "25% of 8,000 updates", or return "" if unknown."""
    if run.log.finished:
        return "finished"
    max_update = get_option(run.options, "max_update")
    if max_update and run.updates:
        return f"{100 * run.updates / float(max_update):.0f}% of {int(max_update):,} updates"
    return "not finished" if run.files else ""
