"""The measurements as a picture: time and memory against length, or ratios of speeds as bars."""

from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from luna_fairseq.benchmark.report import MIB, Section, records
from luna_fairseq.commands.plots import new_figure, save_png

PANEL_INCHES = (4.6, 3.6)
COLUMNS = 6
# Zero has no place on a logarithmic axis.
LEAST_MIB = 1e-3


def write_png(path: Path, sections: Sequence[Section], where: Dict[str, Any]) -> None:
    """Draw all sections, one below the other, into ``path``.

    Args:
        path: of the file; it appears whole or not at all
        sections: with at least one result each
        where: the environment, for the last line
    """
    grids = [layout(section) for section in sections]
    width, height = PANEL_INCHES
    rows = [len(grid) for grid in grids]
    size = (max(len(grid[0]) for grid in grids) * width, sum(rows) * height + 0.4)
    figure = new_figure(figsize=size)
    parts = figure.subfigures(len(sections), 1, squeeze=False, height_ratios=rows)[:, 0]
    for part, section, grid in zip(parts, sections, grids):
        axes = part.subplots(len(grid), len(grid[0]), squeeze=False)
        for axes_row, row in zip(axes, grid):
            for ax, (draw, values) in zip(axes_row, row):
                draw(ax, section, values)
            for ax in axes_row[len(row) :]:
                ax.remove()
        part.suptitle(section.name)
    names = ("hardware", "threads", "torch", "commit")
    figure.supxlabel(", ".join(f"{name} {where[name]}" for name in names), fontsize="x-small")
    save_png(figure, path)


def layout(section: Section) -> List[List[Tuple[Any, List[Dict[str, Any]]]]]:
    """What to draw in each panel, by rows: the function and its records."""
    values = records(section)
    if section.rate:
        values = [{**value, "count": result.count} for value, result in zip(values, section.results)]
    if section.length is None:
        return [[(draw_bars, values)]]
    groups: Dict[str, List[Dict[str, Any]]] = {}
    for value in values:
        key = ", ".join(f"{name} {value['case'][name]}" for name in section.panels)
        groups.setdefault(key, []).append({**value, "panel": key})
    panels = list(groups.values())
    return [
        [(draw, group) for group in panels[first : first + COLUMNS]]
        for first in range(0, len(panels), COLUMNS)
        for draw in (draw_times, draw_memory)
    ]


def draw_times(ax: Any, section: Section, values: List[Dict[str, Any]]) -> None:
    """Median milliseconds against length, with the band of the quartiles; per token or sentence."""
    for name, points in by_form(values).items():
        lengths = [p["case"][section.length] for p in points]
        median, low, high = (
            [1000 * p["seconds"][q] / p.get("count", 1) for p in points] for q in ("median", "q1", "q3")
        )
        (line,) = ax.plot(lengths, median, marker="o", markersize=3, label=name)
        ax.fill_between(lengths, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    finish(ax, section, values, f"ms per {section.rate[:-1]}" if section.rate else "ms")


def draw_memory(ax: Any, section: Section, values: List[Dict[str, Any]]) -> None:
    """Extra peak memory against length."""
    for name, points in by_form(values).items():
        lengths = [p["case"][section.length] for p in points]
        memory = [max(p["extra_bytes"] / MIB, LEAST_MIB) for p in points]
        ax.plot(lengths, memory, marker="o", markersize=3, label=name)
    finish(ax, section, values, "extra MiB")


def by_form(values: List[Dict[str, Any]]) -> Dict[str, List[Dict[str, Any]]]:
    """Records of every form, by length."""
    forms: Dict[str, List[Dict[str, Any]]] = {}
    for value in values:
        forms.setdefault(value["form"], []).append(value)
    return forms


def finish(ax: Any, section: Section, values: List[Dict[str, Any]], label: str) -> None:
    """Axes of a panel."""
    lengths = sorted({value["case"][section.length] for value in values})
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(lengths, [f"{length:,}" for length in lengths])
    ax.set_xlabel(section.length)
    ax.set_ylabel(label)
    ax.set_title(values[0]["panel"], fontsize="small")
    ax.grid(True, which="major", alpha=0.3)
    ax.legend(fontsize="x-small")


def draw_bars(ax: Any, section: Section, values: List[Dict[str, Any]]) -> None:
    """Speed of every form as a multiple of each peer's, with quartiles, and its time."""
    width = 0.8 / len(section.peers)
    for j, peer in enumerate(section.peers):
        ratios = [value["speed_ratio"][peer] for value in values]
        medians = [ratio["median"] for ratio in ratios]
        errors = [[r["median"] - r["q1"] for r in ratios], [r["q3"] - r["median"] for r in ratios]]
        places = [i + width * (j + 0.5) - 0.4 for i in range(len(values))]
        ax.bar(places, medians, 0.9 * width, yerr=errors, capsize=2, label=f"speed / {peer}")
    times = (1000 * value["seconds"]["median"] for value in values)
    labels = [f"{value['form']}\n{time:.3g} ms" for value, time in zip(values, times)]
    ax.set_xticks(range(len(values)), labels, fontsize="xx-small")
    ax.axhline(1.0, color="black", linewidth=0.8)
    ax.set_ylabel("ratio of speeds")
    ax.legend(fontsize="x-small")
