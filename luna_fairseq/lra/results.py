"""Test results of models trained by luna-lra-seeds, and checks that results may be averaged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Tuple

from luna_fairseq.errors import InputError
from luna_fairseq.files.same_run import result_differences

RESULT = "result.json"


@dataclass(frozen=True)
class Result:
    """Test result of a trained model.

    Attributes:
        title: name of the task in the paper, such as "Text".
        model: name of the model, as passed to ``--models``.
        seed: random seed of the training run.
        accuracy: test accuracy in percent.
        options: options passed to fairseq-train, without the seed.
        data: checksum of the data. Empty if unknown.
    """

    title: str
    model: str
    seed: int
    accuracy: float
    options: List[str]
    data: str = ""


def read_result(path: Path) -> Result:
    """Read the test result of a trained model from its file ``result.json``."""
    try:
        return Result(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path} is damaged ({error}). Remove it and start the command again, which repeats the test."
        ) from error


def describe_differences(one: Result, other: Result) -> str:
    """Describe how two results differ in options or data, or return "" if they may be averaged."""
    changes = result_differences(one.options, other.options)
    if one.data and other.data and one.data != other.data:
        changes.append("other data")
    return "; ".join(changes)


def check_comparable(results: Mapping[Path, Result]) -> None:
    """Raise InputError if two results for one model and task differ in options or data."""
    first: Dict[Tuple[str, str], Path] = {}
    for path, result in results.items():
        neighbour = first.setdefault((result.title, result.model), path)
        changes = describe_differences(results[neighbour], result)
        if changes:
            folders = " and ".join(dict.fromkeys([str(path.parent), str(neighbour.parent)]))
            raise InputError(
                f"{folders}: other options or data ({changes}), so that the accuracies must not be averaged. "
                "Give another --out, or remove one run."
            )
