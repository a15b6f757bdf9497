"""The plots of luna-lra-seeds: accuracy against speed after the paper's Figure 1, and accuracy during
training."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple

from luna_fairseq.commands.plots import new_figure, save_png
from luna_fairseq.errors import InputError

MIB = 2**20
TRANSFORMER = "transformer-softmax"
LARGEST_CIRCLE = 3000.0  # area in points squared


class Cost(NamedTuple):
    """Training speed as a multiple of the Transformer's, and extra peak memory in MiB."""

    speed: float
    memory: float


class Costs:
    """What ``python -m luna_fairseq.benchmark lra --json`` has measured of its longest sequences.

    Args:
        path: of its file.

    Attributes:
        length: of these sequences, in bytes.
        by_form: costs by the name of the benchmark's row.

    Raises:
        InputError: the file is missing, or of another benchmark, or has no Transformer to compare with.
    """

    def __init__(self, path: Path):
        try:
            records: List[Dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["lra"]["results"]
            self.length: int = max(record["case"]["T"] for record in records)
            self.by_form = {}
            for record in records:
                if record["case"]["T"] == self.length:
                    speed = record["speed_ratio"][TRANSFORMER]["median"]
                    self.by_form[record["form"]] = Cost(speed, record["extra_bytes"] / MIB)
        except OSError as error:
            raise InputError(f"--costs {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"--costs {path} is not what 'python -m luna_fairseq.benchmark lra --json' writes with "
                f"{TRANSFORMER} ({error!r})"
            ) from None

    def of(self, model: str) -> Cost:
        """The cost of a model of luna-lra-seeds; ``-p`` changes next to nothing. Raises InputError where it
        was not measured."""
        form = TRANSFORMER if model == "transformer" else re.sub("-p$", "", model)
        if form not in self.by_form:
            measured = ", ".join(self.by_form)
            raise InputError(
                f"{form} is not among the costs measured: {measured}; leave the model out, or measure it"
            )
        return self.by_form[form]


@contextmanager
def drawn(path: Path, title: str) -> Iterator[Any]:
    """Axes to draw on; they are then written to ``path`` as a PNG, which appears whole or not at all."""
    figure = new_figure(figsize=(6.4, 4.4))  # inches
    axes = figure.subplots()
    axes.set_title(title, fontsize="medium")
    yield axes
    save_png(figure, path)


def write_figure(path: Path, accuracies: Mapping[str, float], costs: Costs, title: str) -> None:
    """Draw the models into a PNG.

    Args:
        path: of the file.
        accuracies: in per cent, by model; the costs of all must have been measured.
        costs: of the models.
        title: what the accuracies are of.
    """
    points = {model: costs.of(model) for model in accuracies}
    most = max(point.memory for point in points.values())
    with drawn(path, f"{title}; area: extra memory") as axes:
        for number, (model, point) in enumerate(points.items()):
            place = point.speed, accuracies[model]
            label = f"{model}, {point.memory:,.0f} MiB"
            colour = {"color": f"C{number % 10}", "edgecolor": "0.2" if number >= 10 else "none"}
            axes.scatter(*place, s=LARGEST_CIRCLE * point.memory / most, alpha=0.5, label=label, **colour)
            axes.annotate(model, place, ha="center", va="center", size=6)
        axes.margins(0.15)
        legend = axes.legend(fontsize="x-small", bbox_to_anchor=(1.01, 1), loc="upper left")
        for handle in legend.legend_handles:
            handle.set_sizes([30])
        axes.set_xlabel(f"training speed at {costs.length:,} bytes, times the Transformer's")
        axes.set_ylabel("accuracy [%]")


def read_curve(log: Path) -> Dict[int, float]:
    """Validation accuracy by update, as fairseq-train's log has it; what a resumed run did again counts
    once."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    found = (re.search(r"'valid' subset.*\| accuracy ([\d.]+).*\| num_updates (\d+)", line) for line in lines)
    return {int(match[2]): float(match[1]) for match in found if match}


def write_curves(path: Path, curves: Mapping[str, Dict[int, float]], title: str) -> None:
    """Draw validation accuracies against updates into a PNG.

    Args:
        path: of the file.
        curves: accuracy by update, by the name of the run.
        title: what the accuracies are of.
    """
    with drawn(path, title) as axes:
        for name, curve in curves.items():
            axes.plot(list(curve), list(curve.values()), marker="o", markersize=2, label=name)
        axes.set_xlabel("updates")
        axes.set_ylabel("validation accuracy [%]")
        axes.grid(True, alpha=0.3)
        axes.legend(fontsize="x-small")
