"""Record the options and data of a run beside its checkpoints, so that it goes on with no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, List, Mapping, Sequence

from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import CONTENT
from luna_fairseq.files.writing import write_text

RECORD = "run.json"
# Options of fairseq-train that may change while a run goes on: how long and where it trains, what it logs.
# (Options of a model that may change after training are declared in its dataclass: ``may_change``.)
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
    """Record the options and inputs with which a run begins, or compare them with the recorded ones.

    A run without a record, of an older version, passes.

    Args:
        folder: folder of the run; it is created if it does not exist.
        option: the option that names the folder, for the message.
        what: name of an option or input -> its value, from ``checksums.content_of`` and
            :func:`lasting_options`.
        begun: True if the folder holds something to go on with.
        records: False to compare only.

    Raises:
        InputError: an option or input differs from the recorded one.
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
    """Describe every difference in words: "OLD where NEW is given now", without the values of checksums."""
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
    """Return option -> value for the ``words`` of a fairseq-train command; the last of equal options."""
    found: Dict[str, List[str]] = {}
    values: List[str] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            values = found[name] = [value] if equals else []
        else:
            values.append(word)
    return {name: " ".join(given) for name, given in found.items()}


def lasting_options(words: Sequence[str]) -> Dict[str, str]:
    """Return the options of :func:`options_of` that must not change while the run goes on."""
    return {name: value for name, value in options_of(words).items() if name not in _PASSING}


def _read(path: Path) -> Dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is damaged: remove it to go on with the run all the same") from error
    return found if isinstance(found, dict) else {}
