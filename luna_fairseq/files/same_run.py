"""Record of a run's options and data, so that the run is not resumed with other options or data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Collection, Dict, List, Mapping, Sequence

from luna_fairseq.checks.model_options import COSTS_ONLY, MAY_CHANGE, marked_options, model_name
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import CONTENT
from luna_fairseq.files.sole_writer import lock_folder
from luna_fairseq.files.writing import write_text

RECORD = "run.json"
_SHORT = {"-s": "--source-lang", "-t": "--target-lang", "-a": "--arch"}
_ALIASES = {
    "--max-sentences": "--batch-size",
    "--max-sentences-valid": "--batch-size-valid",
    "--wd": "--weight-decay",
    "--save-async": "--write-checkpoints-asynchronously",
}
# Options of fairseq-train that may change when a run is resumed. The options of models that may change are
# marked in their dataclasses.
_DURATION = {
    *("--max-epoch", "--max-update", "--stop-time-hours", "--stop-min-lr", "--patience"),
    *("--save-interval", "--save-interval-updates", "--validate-interval", "--validate-interval-updates"),
    *("--disable-validation", "--valid-subset", "--ignore-unused-valid-subsets"),
}
# Options of the batch that may change when a run is resumed. They change its results.
_WORLD_SIZE = "--distributed-world-size"
_BATCH = {"--max-tokens", _WORLD_SIZE}
# Options that only the checkpoint compares, because records of earlier versions lack them.
_IN_CHECKPOINT = {"--quant-noise-pq"}
# Options that change neither a run nor its results: folders, logs, checkpoints to keep, and devices.
_SURROUNDINGS = {
    *("--save-dir", "--keep-last-epochs", "--keep-interval-updates", "--keep-interval-updates-pattern"),
    *("--keep-best-checkpoints", "--no-epoch-checkpoints", "--no-last-checkpoints", "--checkpoint-suffix"),
    *("--no-save-optimizer-state", "--write-checkpoints-asynchronously", "--user-dir"),
    *("--log-interval", "--log-format", "--log-file", "--no-progress-bar", "--tensorboard-logdir"),
    *("--wandb-project", "--aim-repo", "--aim-run-hash", "--azureml-logging", "--profile"),
    *("--num-workers", "--data-buffer-size", "--empty-cache-freq", "--cpu", "--device-id"),
    *("--distributed-num-procs", "--distributed-port", "--distributed-rank", "--distributed-init-method"),
    *("--distributed-backend", "--distributed-no-spawn", "--nprocs-per-node"),
    *("--ddp-backend", "--ddp-comm-hook", "--bucket-cap-mb", "--find-unused-parameters", "--fast-stat-sync"),
    *("--max-tokens-valid", "--batch-size-valid", "--required-batch-size-multiple"),
}


def check_same_run(
    folder: Path,
    option: str,
    identity: Mapping[str, str],
    results: Sequence[str] = ("checkpoint_last.pt",),
    should_record: bool = True,
    is_new: bool = False,
) -> None:
    """Lock a run's folder, and check that a resumed run has the options and data of the original run.

    A new run records its options and data in the folder. A run without a record, for example from plain
    fairseq-train, is accepted and recorded now.

    Args:
        folder: run folder, created if it does not exist.
        option: option that names the folder, such as "--save-dir", for the error message.
        identity: names and values of the options and data checksums that must not change.
        results: names of files in the folder. If any of them exists, the run is resumed.
        should_record: whether to lock the folder and record a new run. If False, only compare.
        is_new: True if the options ask for a new start, which is recorded without a comparison.

    Raises:
        InputError: Another process uses the folder, a value differs from the record, or the record is
            damaged.
    """
    if should_record:
        folder.mkdir(parents=True, exist_ok=True)
        lock_folder(folder)
    path = folder / RECORD
    is_resumed = not is_new and path.is_file() and any((folder / name).is_file() for name in results)
    changes = differences(_read(path), identity) if is_resumed else []
    if changes:
        raise InputError(
            f"{folder} has a run with other options or data ({'; '.join(changes)}). Give the same, "
            f"use another {option}, or remove {folder} to start again (or, to resume all the same, {path})."
        )
    if should_record and not is_resumed:
        write_text(path, json.dumps(identity, indent=1) + "\n")


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> List[str]:
    """Describe the differences between recorded and current options.

    Example:
        >>> differences({"--lr": "1"}, {"--lr": "2"})
        ['--lr 1 before, --lr 2 now']
    """
    changes = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old != new and str(old or new).startswith(CONTENT):
            changes.append(f"other {name}")
        elif old != new:
            shown = [f"no {name}" if value is None else f"{name} {value}".strip() for value in (old, new)]
            changes.append(f"{shown[0]} before, {shown[1]} now")
    return changes


def parse_options(words: Sequence[str]) -> Dict[str, str]:
    """Parse the options of a fairseq-train command into a mapping from option name to value.

    ``words`` is the command line, split into words. If an option is repeated, the last value takes effect.
    Multiple values are joined with spaces, and a flag has an empty value. A short option, also one that is
    joined with its value, such as ``-sen``, has its long name, and ``--max-sentences`` is ``--batch-size``.

    Example:
        >>> parse_options(["data-bin", "--lr", "1", "--fp16", "-s", "en"])
        {'--lr': '1', '--fp16': '', '--source-lang': 'en'}
    """
    options: Dict[str, List[str]] = {}
    values: List[str] = []
    for word in words:
        if word[:2] in _SHORT:
            value = word[2:].lstrip("=")
            word = _SHORT[word[:2]] + (f"={value}" if value else "")
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            values = options[_ALIASES.get(name, name)] = [value] if equals else []
        else:
            values.append(word)
    return {name: " ".join(option_values) for name, option_values in options.items()}


def select_fixed_options(words: Sequence[str], compares_results: bool = False) -> Dict[str, str]:
    """Return the names and values of fairseq-train options that must not change when a run is resumed.

    ``words`` is the command line, split into words. Options for the duration of training, devices,
    checkpoints and logging are omitted. Model options that may change, such as dropout, and options that
    change the size of a batch are included only if the results of several runs are compared
    (``compares_results``).
    """
    if compares_results:
        return _leave_out(words, {*_DURATION, *_SURROUNDINGS}, COSTS_ONLY)
    return _leave_out(words, {*_DURATION, *_SURROUNDINGS, *_BATCH, *_IN_CHECKPOINT}, MAY_CHANGE)


def result_differences(one: Sequence[str], other: Sequence[str]) -> List[str]:
    """Describe how two fairseq-train command lines differ in options that affect the trained model.

    If the returned list is not empty, the results of the two runs are not comparable. The random seed is
    compared as well, and so is the number of processes. Options for devices, logging and saved checkpoints
    are ignored, and so are model options that change only time or memory.
    """
    return differences(*(_leave_out(words, _SURROUNDINGS, COSTS_ONLY) for words in (one, other)))


def _leave_out(words: Sequence[str], names: Collection[str], mark: str) -> Dict[str, str]:
    """Parse command-line options. Omit options in ``names``, and model options with metadata ``mark``."""
    options = parse_options(words)
    if options.get(_WORLD_SIZE) == "1":  # the default of the commands whose results are compared
        del options[_WORLD_SIZE]
    marked = marked_options(model_name({"arch": options.get("--arch")}), mark)
    spellings = {f"--{name.replace('_', '-')}" for name in marked}.union(*marked.values())
    return {name: value for name, value in options.items() if name not in names and name not in spellings}


def _read(path: Path) -> Dict[str, str]:
    """Read the record of a run's options and data. Raise InputError if the file is damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged. Remove this file to resume the run.") from error
