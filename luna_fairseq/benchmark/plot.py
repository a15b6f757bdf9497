"""The measurements as a picture: time and memory against length, or the time of each row."""

from pathlib import Path
from typing import Any, Dict, List, Sequence

from luna_fairseq.benchmark.measure import Record
from luna_fairseq.benchmark.page import MIB
from luna_fairseq.benchmark.task import Section
from luna_fairseq.commands.plots import new_figure, save_png


def write_png(path: Path, sections: Sequence[Section], where: Dict[str, Any]) -> None:
    """Draw all sections, one below the other, into ``path``, which appears whole or not at all; each has at
    least one result."""
    panels = [panels_of(section) for section in sections]
    columns = max(map(len, panels))
    figure = new_figure(figsize=(4.6 * columns, 7.2 * len(sections)))
    axes = figure.subplots(2 * len(sections), columns, squeeze=False)
    for i, (section, groups) in enumerate(zip(sections, panels)):
        for column in range(columns):
            for k, label in enumerate(("ms", "extra MiB")):
                ax = axes[2 * i + k, column]
                if column < len(groups):
                    draw(ax, section, *list(groups.items())[column], label)
                else:
                    ax.remove()
    figure.supxlabel(
        ", ".join(f"{name} {where[name]}" for name in ("hardware", "threads", "torch", "commit"))
    )
    save_png(figure, path)


def panels_of(section: Section) -> Dict[str, List[Record]]:
    """Results by all that their cases have but length and sentences."""
    panels: Dict[str, List[Record]] = {}
    for record in section.results:
        names = (name for name in record["case"] if name not in (section.length, "sentences"))
        panels.setdefault(", ".join(f"{name} {record['case'][name]}" for name in names), []).append(record)
    return panels


def draw(ax: Any, section: Section, title: str, records: Sequence[Record], label: str) -> None:
    """Median milliseconds (of one token or sentence, where there is a rate) or memory, by length."""
    for form in dict.fromkeys(record["form"] for record in records):
        points = [record for record in records if record["form"] == form]
        x = [point["case"][section.length] if section.length else form for point in points]
        if label == "ms" and section.rate:
            y = [1000 / point[f"{section.rate}_per_second"] for point in points]
        elif label == "ms":
            y = [1000 * point["seconds"]["median"] for point in points]
        else:
            y = [max(point["extra_bytes"] / MIB, 1e-3) for point in points]  # an axis of powers has no zero
        ax.plot(x, y, marker="o", markersize=3, label=form)
    if section.length:
        ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel(section.length or "row")
    ax.set_ylabel(f"{label} of one {section.rate[:-1]}" if label == "ms" and section.rate else label)
    ax.set_title(f"{section.name}: {title}", fontsize="small")
    ax.grid(True, which="major", alpha=0.3)
    ax.legend(fontsize="x-small")
