"""What a run was begun with, beside its checkpoints, so that it is not gone on with as another one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Dict, List, Mapping, Sequence

from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import listed, sha256
from luna_fairseq.files.writing import write_text

RECORD = "run.json"
CONTENT = "sha256:"  # values that begin so are compared, and not shown
# Options that say how long, where and in whose sight it trains: a run stays itself when they change.
_PASSING = {
    *("--max-epoch", "--max-update", "--stop-time-hours", "--stop-min-lr", "--patience", "--save-dir"),
    *("--keep-last-epochs", "--keep-interval-updates", "--keep-best-checkpoints", "--no-epoch-checkpoints"),
    *("--save-interval", "--save-interval-updates", "--validate-interval", "--validate-interval-updates"),
    *("--no-last-checkpoints", "--no-save-optimizer-state", "--checkpoint-suffix", "--disable-validation"),
    *("--log-interval", "--log-format", "--log-file", "--no-progress-bar", "--tensorboard-logdir"),
    *("--wandb-project", "--user-dir", "--num-workers", "--cpu", "--device-id", "--valid-subset"),
    *("--distributed-world-size", "--distributed-port", "--distributed-init-method", "--ddp-backend"),
    *("--max-tokens", "--max-tokens-valid", "--batch-size-valid", "--required-batch-size-multiple"),
}
_READ = (".bin", ".idx", ".npy", ".src", ".label", ".txt")


def same_run(folder: Path, option: str, what: Mapping[str, str], begun: bool, records: bool = True) -> None:
    """Keep ``what`` a run is begun with in ``folder``, or compare it with what the run there was begun with.

    A run of a version that kept no record is taken for the same.

    Args:
        folder: of the run, made if need be.
        option: that names the folder, for the message.
        what: name of an option or an input -> its value; see :func:`content_of` and
            :func:`lasting_options`.
        begun: whether there is anything to go on with.
        records: False only compares.

    Raises:
        InputError: something differs; names it.
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
    """What differs, in words: the former value beside the new one, where values are no checksums."""
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
    """The options among ``words`` of fairseq-train with their values; of equal names the last."""
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
    """Those of :func:`options_of` that say what is computed."""
    return {name: value for name, value in options_of(words).items() if name not in _PASSING}


def content_of(folders: Sequence[Path], splits: Sequence[str] = ("train",)) -> str:
    """One checksum of prepared data: text, labels and dictionaries, in each folder and in those within it.

    Files that a list of checksums beside them names are not read.
    """
    beginnings = tuple(f"{split}." for split in (*splits, "dict"))
    state = hashlib.sha256()
    for folder in folders:
        known = listed(folder)
        for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):
            if path.name.startswith(beginnings) and path.suffix in _READ:
                name = path.relative_to(folder).as_posix()
                state.update(f"{known.get(name) or sha256(path)}  {name}\n".encode())
    return CONTENT + state.hexdigest()


def _read(path: Path) -> Dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is damaged: remove it to go on with the run all the same") from error
    return found if isinstance(found, dict) else {}
