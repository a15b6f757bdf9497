"""Curves for a page: what each figure of each run was, thinned to what a screen can show."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np

from luna_fairseq.report.logs import EPOCH, INNER, SAVED, UPDATES, Log, Table

COLUMNS = 1200  # of pixels: a chart's width on a screen of two pixels a point
KNOTS = 600
DIGITS = 6
SECONDS_AN_HOUR = 3600
# Figure -> title; in the order of the page. These are open at first, all others closed.
MAIN = {
    "ppl": "Perplexity",
    "loss": "Loss (base 2, as the criterion has it)",
    "bleu": "BLEU on validation text",
    "accuracy": "Accuracy (%)",
    "score": "Figure by which the best checkpoint is chosen",
    "lr": "Learning rate",
    "gnorm": "Gradient norm",
    "wps": "Tokens per second",
    "gb_free": "Free GPU memory (GiB)",
}
OTHERS = {
    "nll_loss": "Negative log-likelihood (bits per token)",
    "ups": "Updates per second",
    "wpb": "Tokens per update",
    "bsz": "Sentences per update",
    "clip": "Updates whose gradient was clipped (%)",
    "loss_scale": "Loss scale of fp16",
    "train_wall": "Seconds in training since the last line",
}
AXES = {"epoch", UPDATES, "wall", "update"}
LOGARITHMIC = {"ppl"}


def charts(logs: List[Log]) -> List[Dict[str, Any]]:
    """One chart for each figure that any run has.

    Returns:
        dicts of ``figure``, ``title``, ``open``, ``log`` (axis at first) and ``lines``, which are dicts of
        ``run`` (place in ``logs``), ``kind`` ("train" or the name of a subset), ``x`` (updates) and ``y``.
    """
    found: Dict[str, List[Dict[str, Any]]] = {}
    for place, log in enumerate(logs):
        for kind, table in log.tables.items():
            for figure in (name for name in table if _wanted(name, kind, log)):
                x, y = thinned(table[UPDATES], table[figure])
                if len(x):
                    line = {"run": place, "kind": "train" if kind in (INNER, EPOCH) else kind}
                    found.setdefault(figure, []).append({**line, "x": _short(x), "y": _short(y)})
    order = [*MAIN, *OTHERS]
    names = sorted(found, key=lambda name: (order.index(name) if name in order else len(order), name))
    return [
        {
            "figure": name,
            "title": MAIN.get(name) or OTHERS.get(name) or name.replace("_", " "),
            "open": name in MAIN,
            "log": name in LOGARITHMIC,
            "lines": found[name],
        }
        for name in names
    ]


def _wanted(figure: str, kind: str, log: Log) -> bool:
    if figure in AXES or figure.startswith("best_") or (kind == EPOCH and INNER in log.tables):
        return False
    if kind == SAVED:  # the score is among the figures of validation, if these are told
        return figure == "score" and not log.subsets
    # Speed and sizes of batches in validation say nothing of the training.
    return kind in (INNER, EPOCH) or figure not in ("wps", "ups", "wpb", "bsz")


def axes(log: Log) -> Dict[str, List[float]]:
    """Epochs, tokens and hours at some numbers of updates; between them they grow evenly.

    Returns:
        ``updates`` and, as far as they are known, ``epochs``, ``tokens``, ``hours``, all of one length.
    """
    table = log.training or log.tables.get(SAVED, {})
    if not len(table.get(UPDATES, ())):
        return {"updates": [0.0]}
    updates = table[UPDATES]
    known = {"updates": updates}
    if "epoch" in table:
        known["epochs"] = table["epoch"]
    if "wpb" in table:
        known["tokens"] = np.cumsum(np.nan_to_num(table["wpb"]) * np.diff(updates, prepend=0))
    if "wall" in table:
        known["hours"] = hours(table)
    places = np.unique(np.linspace(0, len(updates) - 1, KNOTS).round().astype(int))
    good = places[np.isfinite(np.stack([values[places] for values in known.values()])).all(axis=0)]
    return {name: [0.0, *_short(values[good])] for name, values in known.items()}


def hours(table: Table) -> np.ndarray:
    """Hours of training until each line of a table that has ``wall``.

    After a restart fairseq's clock begins again, or stands at 0: then a line's own ``train_wall`` counts.
    """
    step = np.diff(np.nan_to_num(table["wall"]), prepend=0)
    spent = np.nan_to_num(table.get("train_wall", np.zeros_like(step)))
    return np.cumsum(np.where(step > 0, step, spent)) / SECONDS_AN_HOUR


def thinned(x: np.ndarray, y: np.ndarray, columns: int = COLUMNS) -> Tuple[np.ndarray, np.ndarray]:
    """The points without which a line chart of ``columns`` pixels would look different.

    Of each pixel's points these are the first, the last, the lowest and the highest (Jugel et al., "M4", VLDB
    2014), so that no extreme is lost. Points that are no numbers are left out.

    Args:
        x: [N], growing
        y: [N]
        columns: pixels

    Returns:
        at most 4 * columns points, in the order in which they came.
    """
    finite = np.isfinite(y) & np.isfinite(x)
    x, y = x[finite], y[finite]
    if len(x) <= 4 * columns:
        return x, y
    column = np.minimum(((x - x[0]) * (columns / (x[-1] - x[0]))).astype(int), columns - 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    ends = np.append(starts[1:], len(x)) - 1
    by_height = np.lexsort((y, column))  # within each column from the lowest to the highest
    keep = np.unique(np.concatenate([starts, ends, by_height[starts], by_height[ends]]))
    return x[keep], y[keep]


def _short(values: np.ndarray) -> List[float]:
    """As Python's numbers, of so many digits as a chart can show."""
    return [
        int(value) if value.is_integer() and abs(value) < 1e15 else value
        for value in (float(f"{value:.{DIGITS}g}") for value in values.tolist())
    ]
