"""The plots of luna-lra-seeds: accuracy against speed after the paper's Figure 1, and accuracy during training."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from luna_fairseq.benchmark.report import MIB, replace_file
from luna_fairseq.errors import InputError

TRANSFORMER = "transformer-softmax"
LARGEST_CIRCLE = 3000.0  # area in points squared
SIZE = (6.4, 4.4)  # inches


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
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    for model, point in points.items():
        axes.scatter(point.speed, accuracies[model], s=LARGEST_CIRCLE * point.memory / most, alpha=0.5)
        axes.annotate(f"{model}\n{point.memory:,.0f} MiB", (point.speed, accuracies[model]), ha="center", va="center", size=8)
    axes.margins(0.25)
    axes.set_xlabel(f"training speed at {length:,} bytes, times the Transformer's")
    axes.set_ylabel("accuracy [%]")
    axes.set_title(f"{title}; area: extra memory", fontsize="medium")
    replace_file(path, lambda temporary: figure.savefig(str(temporary), format="png", dpi=120))


def read_curve(log: Path) -> Dict[int, float]:
    """Validation accuracy by update, as fairseq-train's log has it; what a resumed run did again counts once."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    found = (re.search(r"'valid' subset.*\| accuracy ([\d.]+).*\| num_updates (\d+)", line) for line in lines)
    return {int(match[2]): float(match[1]) for match in found if match}


def write_curves(path: Path, curves: Mapping[str, Dict[int, float]], title: str) -> None:
    """Draw validation accuracies against updates into a PNG.

    Args:
        path: of the file; it appears whole or not at all.
        curves: accuracy by update, by the name of the run.
        title: what the accuracies are of.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        axes.plot(list(curve), list(curve.values()), marker="o", markersize=2, label=name)
    axes.set_xlabel("updates")
    axes.set_ylabel("validation accuracy [%]")
    axes.set_title(title, fontsize="medium")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize="x-small")
    replace_file(path, lambda temporary: figure.savefig(str(temporary), format="png", dpi=120))
