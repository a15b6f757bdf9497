"""Plots for luna-lra-seeds: accuracy against speed (Figure 1 of the paper) and accuracy during training."""

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
MAX_CIRCLE_AREA = 3000.0  # points squared
# Line of a log with an accuracy and a number of updates, for --log-format simple and json.
_VALIDATION = re.compile(
    r"""(?:'valid' subset.*\| accuracy |"valid_accuracy": ")([\d.]+).*num_updates(?: |": ")(\d+)"""
)


class Cost(NamedTuple):
    """Training cost of a model.

    Attributes:
        speed: training speed relative to the Transformer. 2.0 means twice as fast.
        memory: peak memory of a training step beyond the memory in use before it, in MiB.
    """

    speed: float
    memory: float


class Costs:
    """Training costs of models on their longest sequences, as measured by the benchmark ``lra``.

    The constructor reads the JSON file that ``python -m luna_fairseq.benchmark lra --json`` writes.

    Attributes:
        length: length of the longest sequences in bytes.
        by_model: training cost of each model, keyed by the model's name in the benchmark.
    """

    def __init__(self, path: Path):
        try:
            records: List[Dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["lra"]["results"]
            self.length: int = max(record["case"]["T"] for record in records)
            self.by_model = {}
            for record in records:
                if record["case"]["T"] == self.length:
                    speed = record["speed_ratio"][TRANSFORMER]["median"]
                    self.by_model[record["form"]] = Cost(speed, record["extra_bytes"] / MIB)
        except OSError as error:
            raise InputError(f"--costs {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"--costs {path} has no measurements of {TRANSFORMER} on Long Range Arena ({error!r}). Write "
                "it with 'python -m luna_fairseq.benchmark lra --json FILE'."
            ) from None

    def find(self, model: str) -> Cost:
        """Return the training cost of a model of luna-lra-seeds, such as ``luna-16``.

        The suffix ``-p``, for classification from the mean of the packed sequence P, hardly affects the cost
        and is ignored. Raise InputError if the benchmark did not measure the model.
        """
        form = TRANSFORMER if model == "transformer" else re.sub("-p$", "", model)
        if form not in self.by_model:
            measured = ", ".join(self.by_model)
            raise InputError(
                f"--costs has no measurement of {form}, only of {measured}. Leave out the model, or "
                "measure it."
            )
        return self.by_model[form]


@contextmanager
def save_axes(path: Path, title: str) -> Iterator[Any]:
    """Context manager that yields empty matplotlib axes, and saves them as a PNG file on success."""
    figure = new_figure(figsize=(6.4, 4.4))  # inches
    axes = figure.subplots()
    axes.set_title(title, fontsize="medium")
    yield axes
    save_png(figure, path)


def write_figure(path: Path, accuracies: Mapping[str, float], costs: Costs, title: str) -> None:
    """Plot accuracy in percent against training speed, with one circle per model, to a PNG file.

    A circle's area is proportional to the memory. ``title`` names the tasks over which accuracy is averaged.
    """
    cost_by_model = {model: costs.find(model) for model in accuracies}
    max_memory = max(cost.memory for cost in cost_by_model.values())
    with save_axes(path, f"{title}; area of a circle: extra memory") as axes:
        for number, (model, cost) in enumerate(cost_by_model.items()):
            point = cost.speed, accuracies[model]
            name = re.sub("^peer-", "", model)
            axes.scatter(
                *point,
                s=MAX_CIRCLE_AREA * cost.memory / max_memory,
                alpha=0.5,
                label=f"{name}, {cost.memory:,.0f} MiB",
                color=f"C{number % 10}",
                # matplotlib has ten colors, so the edge distinguishes the next ten models.
                edgecolor="0.2" if number >= 10 else "none",
            )
            axes.annotate(name, point, ha="center", va="center", size=6)
        axes.margins(0.15)
        legend = axes.legend(fontsize="x-small", bbox_to_anchor=(1.01, 1), loc="upper left")
        for handle in legend.legend_handles:
            handle.set_sizes([30])
        axes.set_xlabel(f"training speed at {costs.length:,} bytes, relative to the Transformer")
        axes.set_ylabel("accuracy [%]")


def read_curve(log: Path) -> Dict[int, float]:
    """Read the validation accuracy in percent at each update from a log of fairseq-train.

    Its --log-format is simple or json. If a resumed run repeated an update, the later accuracy is used.
    Without a log, the result is {}.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    matches = filter(None, map(_VALIDATION.search, lines))
    return {int(match[2]): float(match[1]) for match in matches}


def write_curves(path: Path, curves: Mapping[str, Dict[int, float]], title: str) -> None:
    """Plot validation accuracies from :func:`read_curve` against updates, with a line per run."""
    with save_axes(path, title) as axes:
        for name, curve in curves.items():
            axes.plot(list(curve), list(curve.values()), marker="o", markersize=2, label=name)
        axes.set_xlabel("updates")
        axes.set_ylabel("validation accuracy [%]")
        axes.grid(True, alpha=0.3)
        axes.legend(fontsize="x-small")
