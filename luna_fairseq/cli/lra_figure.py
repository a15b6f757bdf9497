"""The figure of luna-lra-seeds, after the paper's Figure 1: accuracy against speed, memory as the circle's size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from luna_fairseq.benchmark.report import MIB, replace_file
from luna_fairseq.errors import InputError

TRANSFORMER = "transformer-softmax"
LARGEST_CIRCLE = 3000.0  # area in points squared


class Cost(NamedTuple):
    """Training speed as a multiple of the Transformer's, and extra peak memory in MiB."""

    speed: float
    memory: float


def read_costs(path: Path) -> Tuple[int, Dict[str, Cost]]:
    """The longest sequences that ``python -m luna_fairseq.benchmark lra --json`` has measured, and costs by model.

    Raises:
        InputError: the file is missing, or of another benchmark, or has no Transformer to compare with.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        records: List[Dict[str, Any]] = values["lra"]["results"]
        longest = max(record["case"]["T"] for record in records)
        records = [record for record in records if record["case"]["T"] == longest]
        costs = {
            record["form"]: Cost(record["speed_ratio"][TRANSFORMER]["median"], record["extra_bytes"] / MIB)
            for record in records
        }
    except OSError as error:
        raise InputError(f"--costs {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"--costs {path} is not what 'python -m luna_fairseq.benchmark lra --json' writes with {TRANSFORMER} ({error!r})"
        ) from None
    return longest, costs


def cost_of(model: str, costs: Mapping[str, Cost]) -> Cost:
    """The cost of a model of luna-lra-seeds; ``-p`` changes next to nothing.

    Raises:
        InputError: it was not measured.
    """
    form = TRANSFORMER if model == "transformer" else model[:-2] if model.endswith("-p") else model
    if form not in costs:
        raise InputError(f"{form} is not among the costs measured: {', '.join(costs)}; leave the model out, or measure it")
    return costs[form]


def write_figure(path: Path, accuracies: Mapping[str, float], costs: Mapping[str, Cost], title: str, length: int) -> None:
    """Draw the models into a PNG.

    Args:
        path: of the file; it appears whole or not at all.
        accuracies: in per cent, by model.
        costs: by benchmark form; all models' must be there.
        title: what the accuracies are of.
        length: of the sequences whose cost was measured.
    """
    # Not through pyplot, which would look for a display.
    from matplotlib.figure import Figure

    points = {model: cost_of(model, costs) for model in accuracies}
    most = max(point.memory for point in points.values())
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    for model, point in points.items():
        axes.scatter(point.speed, accuracies[model], s=LARGEST_CIRCLE * point.memory / most, alpha=0.5)
        axes.annotate(f"{model}\n{point.memory:,.0f} MiB", (point.speed, accuracies[model]), ha="center", va="center", size=8)
    axes.margins(0.25)
    axes.set_xlabel(f"training speed at {length:,} bytes, times the Transformer's")
    axes.set_ylabel("accuracy [%]")
    axes.set_title(f"{title}; area: extra memory", fontsize="medium")
    replace_file(path, lambda temporary: figure.savefig(str(temporary), format="png", dpi=120))
