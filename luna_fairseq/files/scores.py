"""Translation scores in ``scores.json``, each stored with its checkpoint and search settings."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import sha256
from luna_fairseq.files.writing import write_text

SCORES = "scores.json"


def describe_checkpoint(path: Path, ema: bool = False) -> Dict[str, Any]:
    """Return entries for ``scores.json``: checkpoint name, SHA-256, and whether its EMA weights are used."""
    return {"checkpoint": path.name, "checkpoint_sha256": sha256(path), "ema": ema}


def write_scores(
    path: Path, scores: Sequence[Mapping[str, Any]], translation: Path, origin: Mapping[str, Any]
) -> None:
    """Write the scores of a translation to a JSON file, with the path and checksum of the translation.

    ``translation`` is an output file of fairseq-generate. ``origin`` describes how the file was generated,
    with the entries of :func:`describe_checkpoint` and the search "settings", as far as they are known.
    """
    scored = {
        "translation": os.path.relpath(str(translation), str(path.absolute().parent)),
        "translation_sha256": _translation_checksum(translation),
    }
    write_text(path, json.dumps([{**score, **origin, **scored} for score in scores], indent=1) + "\n")


def read_scores(path: Path) -> List[Dict[str, Any]]:
    """Read the scores that :func:`write_scores` wrote to a file. Raise InputError if the file is invalid."""
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))
        for score in scores:
            score["name"], score["signature"], float(score["value"])  # raises if an entry is missing
        return list(scores)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} contains no scores. Give a {SCORES} that luna-evaluate wrote.") from error


def select_scores(
    scores: Sequence[Dict[str, Any]], checkpoint: Path, ema: bool, accept_unknown: bool = False
) -> List[Dict[str, Any]]:
    """Return the scores of a checkpoint's weights or, if ``ema``, of their moving average.

    With ``accept_unknown``, scores without a recorded checkpoint are returned too.
    """
    named = [score for score in scores if "checkpoint_sha256" in score]
    checksum = sha256(checkpoint) if named else None
    return [
        score
        for score in scores
        if (accept_unknown and score not in named)
        or (score.get("checkpoint_sha256"), score.get("ema")) == (checksum, ema)
    ]


def describe_settings(score: Mapping[str, Any]) -> str:
    """Return the search settings of a score, such as "beam 5, lenpen 0.6", or "" if they are unknown.

    The tokenizer is omitted, because sacreBLEU's signature contains it.
    """
    settings = (score.get("settings") or {}).items()
    return ", ".join(f"{name} {value}" for name, value in settings if name != "tokenize")


def find_translation(scores: Sequence[Mapping[str, Any]], folder: Path) -> Optional[Path]:
    """Return the path of the scored translation, or None if the file is unknown, missing or modified."""
    for score in scores:
        if "translation" in score:
            path = folder / score["translation"]
            is_same = path.is_file() and _translation_checksum(path) == score.get("translation_sha256")
            return path if is_same else None
    return None


def _translation_checksum(path: Path) -> str:
    """Return the SHA-256 of the S-, T-, H- and D- lines in an output file of fairseq-generate."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        for line in file:
            if line.startswith((b"S-", b"T-", b"H-", b"D-")):
                state.update(line)
    return state.hexdigest()
