"""Exponents of growth: slopes of lines through measurements on logarithmic axes, beside those of theory."""

import math
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

# A line through two points has no error.
FEWEST = 3
Points = Sequence[Tuple[float, float]]


@dataclass(frozen=True)
class Theory:
    """What is known of a layer of width d over n positions.

    Attributes:
        operations: as a formula
        time: exponents of n and of d in it
        memory: those of what a training step keeps
        sequential: operations that must wait for each other
        path: steps between any two positions
    """

    operations: str
    time: Tuple[float, float]
    memory: Tuple[float, float]
    sequential: str
    path: str


class Fit(NamedTuple):
    """An exponent and its standard error."""

    exponent: float
    error: float


def fit(points: Points) -> Optional[Fit]:
    """Least squares of log y on log x; None of fewer than three points, or where a y is 0."""
    if len(points) < FEWEST or any(y <= 0 for _, y in points):
        return None
    x, y = ([math.log(value) for value in values] for values in zip(*points))
    n, mean_x, mean_y = len(x), sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / spread
    residual = sum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y))
    return Fit(slope, math.sqrt(residual / (n - 2) / spread))


def exponents(records: Sequence[Dict[str, Any]], theory: Dict[str, Theory]) -> List[Dict[str, Any]]:
    """Exponents of every form, of time and memory against n and against d.

    Args:
        records: of cases that have ``against``, "n, .." or "d, ..", and ``size``
        theory: by form
    """
    groups: Dict[Tuple[str, str], List[Dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["case"]["against"], record["form"]), []).append(record)
    values = []
    for (against, form), group in groups.items():
        sizes = [record["case"]["size"] for record in group]
        known, column = theory[form], "nd".index(against[0])
        time = fit([(size, r["seconds"]["median"]) for size, r in zip(sizes, group)])
        memory = fit([(size, r["extra_bytes"]) for size, r in zip(sizes, group)])
        values.append(
            {
                "against": against,
                "form": form,
                "time": time and time._asdict(),
                "time_in_theory": known.time[column],
                "memory": memory and memory._asdict(),
                "memory_in_theory": known.memory[column],
                "operations": known.operations,
                "sequential": known.sequential,
                "path": known.path,
            }
        )
    return values


def table(values: Sequence[Dict[str, Any]]) -> str:
    """The exponents for people."""
    rows = [["against", "form", "time", "theory", "memory", "theory", "operations", "sequential", "path"]]
    for value in values:
        fits = [
            "-" if value[what] is None else "{exponent:.2f} +- {error:.2f}".format(**value[what])
            for what in ("time", "memory")
        ]
        known = [f"{value[f'{what}_in_theory']:g}" for what in ("time", "memory")]
        words = [value[name] for name in ("operations", "sequential", "path")]
        rows.append([value["against"], value["form"], fits[0], known[0], fits[1], known[1], *words])
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)
    return "\n".join(["exponents of growth, with standard errors", *lines, ""])
