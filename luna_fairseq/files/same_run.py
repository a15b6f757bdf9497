"""Record of a run's options and data, so that the run is not accidentally resumed with different ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, List, Mapping, Sequence

from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import CONTENT
from luna_fairseq.files.writing import write_text

RECORD = "run.json"
# Options of fairseq-train that may change when a run is resumed: duration, devices, checkpoints and logging.
# The options of a model that may change are marked in its dataclass (``may_change``).
_MAY_CHANGE = {
    *("--max-epoch", "--max-update", "--stop-time-hours", "--stop-min-lr", "--patience", "--save-dir"),
    *("--keep-last-epochs", "--keep-interval-updates", "--keep-best-checkpoints", "--no-epoch-checkpoints"),
    *("--save-interval", "--save-interval-updates", "--validate-interval", "--validate-interval-updates"),
    *("--no-last-checkpoints", "--no-save-optimizer-state", "--checkpoint-suffix", "--disable-validation"),
    *("--log-interval", "--log-format", "--log-file", "--no-progress-bar", "--tensorboard-logdir"),
    *("--wandb-project", "--user-dir", "--num-workers", "--cpu", "--device-id", "--valid-subset"),
    "--ignore-unused-valid-subsets",
    *("--distributed-world-size", "--distributed-port", "--distributed-init-method", "--ddp-backend"),
    *("--max-tokens", "--max-tokens-valid", "--batch-size-valid", "--required-batch-size-multiple"),
}


def check_same_run(
    folder: Path, option: str, identity: Mapping[str, str], is_resumed: bool, should_record: bool = True
) -> None:
    """Record the options and data of a new run, or compare those of a resumed run with its record.

    A resumed run without a record was started by an earlier version. It is accepted and recorded now.

    Args:
        folder: run folder, created if it does not exist.
        option: option that names the folder, such as "--save-dir", for the error message.
        identity: options and data checksums that must not change, keyed by name.
        is_resumed: True if the folder contains a run to resume.
        should_record: write the record of a new run (default: True).

    Raises:
        InputError: A value differs from the record, or the record is damaged.
    """
    path = folder / RECORD
    if is_resumed and path.is_file():
        changes = differences(_read(path), identity)
        if changes:
            raise InputError(
                f"{folder} has a run with other options or data ({'; '.join(changes)}). Use another "
                f"{option}, or remove {folder} to start again (to resume in spite of this, remove {path})."
            )
    if should_record and not (is_resumed and path.is_file()):
        write_text(path, json.dumps(identity, indent=1) + "\n")


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> List[str]:
    """Describe the differences between recorded and current options.

    Args:
        before: recorded values, keyed by name.
        now: current values, keyed by name.

    Returns:
        One string per difference. Checksums are not shown.

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
    """Parse the options of a fairseq-train command.

    Only words that begin with two dashes start an option.

    Args:
        words: command-line arguments.

    Returns:
        Values keyed by option. The last value of a repeated option counts. Several values are joined by
        spaces, and a flag has an empty value.

    Example:
        >>> parse_options(["data-bin", "--lr", "1", "--fp16"])
        {'--lr': '1', '--fp16': ''}
    """
    options: Dict[str, List[str]] = {}
    values: List[str] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            values = options[name] = [value] if equals else []
        else:
            values.append(word)
    return {name: " ".join(option_values) for name, option_values in options.items()}


def select_fixed_options(words: Sequence[str]) -> Dict[str, str]:
    """Return the options of a fairseq-train command that must not change when the run is resumed.

    Options for duration, devices, checkpoints and logging may change.

    Args:
        words: command-line arguments.

    Returns:
        Values keyed by option, as returned by :func:`parse_options`.
    """
    return {name: value for name, value in parse_options(words).items() if name not in _MAY_CHANGE}


def _read(path: Path) -> Dict[str, str]:
    """Read the record of a run.

    Args:
        path: path to the record.

    Returns:
        Recorded values, keyed by name. Empty if an earlier version wrote the record in a different format.

    Raises:
        InputError: The record is damaged.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is damaged. Remove this file to resume the run.") from error
    return record if isinstance(record, dict) else {}
