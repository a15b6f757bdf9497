"""The measurements as tables of Markdown and a picture for people, and as JSON for programs."""

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence

import torch

import luna_fairseq
from luna_fairseq.benchmark.task import Record, Section
from luna_fairseq.commands.plots import new_figure, save_png
from luna_fairseq.files.writing import write_text
from luna_fairseq.provenance import commit

MIB = 2**20


def environment(args: argparse.Namespace) -> Dict[str, Any]:
    """Where and with what a run takes place."""
    on_gpu = args.device.startswith("cuda")
    return {
        "hardware": torch.cuda.get_device_name(args.device) if on_gpu else processor(),
        "logical_cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        **{name: getattr(args, name) for name in ("repetitions", "threads", "device", "seed")},
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq": getattr(sys.modules.get("fairseq"), "__version__", None),
        "luna_fairseq": luna_fairseq.__version__,
        "commit": commit(Path(luna_fairseq.__file__).resolve().parents[1] / ".git"),
    }


def processor() -> str:
    """Name of the CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def write_json(path: Path, values: Dict[str, Any]) -> None:
    """Write values to a file, which appears whole or not at all."""
    write_text(path, json.dumps(values, indent=1) + "\n")


def table_of(records: Sequence[Record], rate: str, peers: Sequence[str]) -> str:
    """The table of some records: times, rates, speeds as multiples of those of the peers, memory."""
    rows = []
    for record in records:
        row = {**{name: str(value) for name, value in record["case"].items()}, "row": record["form"]}
        row["ms [quartiles]"] = with_quartiles(record["seconds"], 1000)
        if rate:
            row[f"{rate}/s"] = short(record[f"{rate}_per_second"])
        for peer in peers:
            ratio = record["speed_ratio"].get(peer)
            row[f"/ {peer}"] = (
                "-" if ratio is None else "1" if record["form"] == peer else with_quartiles(ratio)
            )
        rows.append({**row, "extra MiB": f"{record['extra_bytes'] / MIB:,.1f}"})
    return table(rows)


def with_quartiles(values: Dict[str, float], scale: float = 1.0) -> str:
    """Median [quartile quartile]."""
    median, *quartiles = (short(scale * values[name]) for name in ("median", "q1", "q3"))
    return f"{median} [{' '.join(quartiles)}]"


def short(value: float) -> str:
    """Three digits, never an exponent."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def table(rows: Sequence[Dict[str, Any]]) -> str:
    """A table of Markdown in equal columns, of rows that have the same columns, and an empty line that ends
    it; nothing for no rows."""
    formats = {float: ",.3f", int: ","}
    texts = [[format(cell, formats.get(type(cell), "")) for cell in row.values()] for row in rows]
    texts = [list(row) for row in rows[:1]] + texts
    widths = [max(map(len, column)) for column in zip(*texts)]
    texts.insert(1, ["-" * width for width in widths])
    lines = (" | ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in texts)
    return "\n".join([*(f"| {line} |" for line in lines), ""]) if rows else ""


def write_png(path: Path, sections: Sequence[Section], where: Dict[str, Any]) -> None:
    """Draw all sections, one below the other, into ``path``, which appears whole or not at all; each has at
    least one result."""
    panels = [panels_of(section) for section in sections]
    columns = max(map(len, panels))
    figure = new_figure(figsize=(4.6 * columns, 7.2 * len(sections)))
    axes = figure.subplots(2 * len(sections), columns, squeeze=False)
    for i, (section, groups) in enumerate(zip(sections, panels)):
        for column, (title, records) in enumerate(groups.items()):
            for k, label in enumerate(("ms", "extra MiB")):
                draw(axes[2 * i + k, column], section, title, records, label)
        for ax in axes[2 * i : 2 * i + 2, len(groups) :].flat:
            ax.remove()
    said = ("hardware", "threads", "torch", "commit")
    figure.supxlabel(", ".join(f"{name} {where[name]}" for name in said))
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
    of_rate = section.rate if label == "ms" else ""
    for form in dict.fromkeys(record["form"] for record in records):
        points = [record for record in records if record["form"] == form]
        x = [point["case"][section.length] if section.length else form for point in points]
        if of_rate:
            y = [1000 / point[f"{of_rate}_per_second"] for point in points]
        elif label == "ms":
            y = [1000 * point["seconds"]["median"] for point in points]
        else:
            y = [max(point["extra_bytes"] / MIB, 1e-3) for point in points]  # an axis of powers has no zero
        ax.plot(x, y, marker="o", markersize=3, label=form)
    if section.length:
        ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ylabel = f"{label} of one {of_rate[:-1]}" if of_rate else label
    ax.set(xlabel=section.length or "row", ylabel=ylabel)
    ax.set_title(f"{section.name}: {title}", fontsize="small")
    ax.grid(True, which="major", alpha=0.3)
    ax.legend(fontsize="x-small")
