"""Record of the options and data of a run, which prevents continuing the run with different ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, List, Mapping, Sequence

from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import CONTENT
from luna_fairseq.files.writing import write_text

RECORD = "run.json"
# Options of fairseq-train that may change when a run continues: duration, devices, checkpoints and logging.
# Model options that may change after training are declared in the dataclass of the model (``may_change``).
_PASSING = {
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


def same_run(folder: Path, option: str, what: Mapping[str, str], begun: bool, records: bool = True) -> None:
    """Record the options and inputs of a new run, or compare those of a continued run with its record.

    A continued run without a record, which an earlier version wrote, is accepted and recorded.

    Args:
        folder: folder of the run, created if it does not exist.
        option: option that names the folder, for the message.
        what: name of an option or input -> its value, from ``checksums.content_of`` and
            :func:`lasting_options`.
        begun: True if the folder contains a run to continue.
        records: If False, compare but do not record (default: True).

    Raises:
        InputError: An option or input differs from the recorded one.
    """
    path = folder / RECORD
    if begun and path.is_file():
        changes = differences(_read(path), what)
        if changes:
            raise InputError(
                f"{folder} holds a run with {'; '.join(changes)}: give another {option}, or remove {folder} "
                f"to start anew (or {path.name} in it, to go on with it nevertheless)"
            )
    if records and not (begun and path.is_file()):
        write_text(path, json.dumps(what, indent=1) + "\n")


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> List[str]:
    """Describe the differences between recorded and current options.

    Args:
        before: recorded name -> value.
        now: current name -> value.

    Returns:
        One description for each difference. The values of checksums are not shown.

    Example:
        >>> differences({"--lr": "1"}, {"--lr": "2"})
        ['--lr 1 where --lr 2 is given now']
    """
    changes = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old != new and str(old or new).startswith(CONTENT):
            changes.append(f"other {name}")
        elif old != new:
            shown = ["nothing" if value is None else f"{name} {value}".strip() for value in (old, new)]
            changes.append(f"{shown[0]} where {shown[1]} is given now")
    return changes


def options_of(words: Sequence[str]) -> Dict[str, str]:
    """Parse the options of a fairseq-train command.

    Args:
        words: words of the command line.

    Returns:
        Option -> value. If an option is repeated, the last value counts. A flag has an empty value.

    Example:
        >>> options_of(["data-bin", "--lr", "1", "--fp16"])
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


def lasting_options(words: Sequence[str]) -> Dict[str, str]:
    """Return the options of a fairseq-train command that must not change when the run continues.

    Args:
        words: words of the command line.

    Returns:
        Option -> value, as returned by :func:`options_of`.
    """
    return {name: value for name, value in options_of(words).items() if name not in _PASSING}


def _read(path: Path) -> Dict[str, str]:
    """Read a record. The result is empty if an earlier version wrote other content."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is damaged: remove it to go on with the run all the same") from error
    return record if isinstance(record, dict) else {}
