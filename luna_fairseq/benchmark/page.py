"""Output of measurements as Markdown tables, plots and JSON."""

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
    """Describe the hardware, the software and the options of a run.

    Args:
        args: parsed options of the command.

    Returns:
        The descriptions by name, in JSON types.
    """
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    on_gpu = args.device.startswith("cuda")
    processor = [*names, platform.processor() or platform.machine()][0]
    return {
        "hardware": torch.cuda.get_device_name(args.device) if on_gpu else processor,
        "logical_cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        **{name: getattr(args, name) for name in ("repetitions", "threads", "device", "seed")},
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq": getattr(sys.modules.get("fairseq"), "__version__", None),
        "luna_fairseq": luna_fairseq.__version__,
        "commit": commit(Path(luna_fairseq.__file__).resolve().parents[1] / ".git"),
    }


def write_json(path: Path, values: Dict[str, Any]) -> None:
    """Write values to a JSON file.

    An existing file is replaced when the new file is complete.

    Args:
        path: file to write.
        values: dictionary of JSON types.
    """
    write_text(path, json.dumps(values, indent=1) + "\n")


def table_of(records: Sequence[Record], rate: str, peers: Sequence[str]) -> str:
    """Format measurements as a Markdown table.

    Args:
        records: measurements of several rows.
        rate: "tokens" or "sentences", whose number per second is shown; empty for no rate.
        peers: names of the rows with which speeds are compared.

    Returns:
        A table with times, rates, ratios of speeds and extra memory.
    """
    rows = []
    for record in records:
        row = {**{name: str(value) for name, value in record["case"].items()}, "row": record["form"]}
        row["ms [quartiles]"] = with_quartiles(record["seconds"], 1000)
        if rate:
            row[f"{rate}/s"] = short(record[f"{rate}_per_second"])
        for peer in peers:
            ratio = record["speed_ratio"].get(peer)
            row[f"/ {peer}"] = "1" if record["form"] == peer else with_quartiles(ratio) if ratio else "-"
        rows.append({**row, "extra MiB": f"{record['extra_bytes'] / MIB:,.1f}"})
    return table(rows)


def with_quartiles(values: Dict[str, float], scale: float = 1.0) -> str:
    """Format a median and its quartiles as "median [q1 q3]".

    Args:
        values: dictionary with "median", "q1" and "q3".
        scale: factor for all values (default: 1).

    Returns:
        The text.
    """
    median, q1, q3 = (short(scale * values[name]) for name in ("median", "q1", "q3"))
    return f"{median} [{q1} {q3}]"


def short(value: float) -> str:
    """Format a number with three significant digits, without an exponent.

    Args:
        value: number of at least 0.

    Returns:
        The text, with a comma between thousands.

    Example:
        >>> short(1234.5), short(1.2345)
        ('1,234', '1.23')
    """
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def table(rows: Sequence[Dict[str, Any]]) -> str:
    """Format a Markdown table with aligned columns, followed by an empty line.

    Args:
        rows: lines of the table, each a dictionary from column to cell, with the same columns.

    Returns:
        The table, or an empty string if there are no lines.
    """
    formats = {float: ",.3f", int: ","}
    texts = [[format(cell, formats.get(type(cell), "")) for cell in row.values()] for row in rows]
    texts = [list(row) for row in rows[:1]] + texts
    widths = [max(map(len, column)) for column in zip(*texts)]
    texts.insert(1, ["-" * width for width in widths])
    lines = (" | ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in texts)
    return "\n".join([*(f"| {line} |" for line in lines), ""]) if rows else ""


def write_png(path: Path, sections: Sequence[Section], description: Dict[str, Any]) -> None:
    """Plot times and memory against the length, side by side.

    Cases that differ only in length or batch size share a pair of plots.

    Args:
        path: PNG file to write.
        sections: results of tasks, each with at least one measurement.
        description: description of the run, returned by :func:`environment`.
    """
    rows: Dict[str, List[Record]] = {}
    for section in sections:
        for record in section.results:
            kind = (f"{name} {x}" for name, x in record["case"].items() if name not in ("T", "sentences"))
            title = f"{section.name}: {', '.join(kind)}"
            rows.setdefault(title, []).append({**record, "drawn": heights(record, section.rate)})
    figure = new_figure(figsize=(9.2, 3.6 * len(rows)))
    for axes, (title, records) in zip(figure.subplots(len(rows), 2, squeeze=False), rows.items()):
        for ax, label in zip(axes, records[0]["drawn"]):
            draw(ax, title, label, records)
    names = ("hardware", "threads", "torch", "commit")
    figure.supxlabel(", ".join(f"{name} {description[name]}" for name in names))
    save_png(figure, path)


def heights(record: Record, rate: str) -> Dict[str, float]:
    """Return the time and memory of a measurement, by the labels of their axes in the plot.

    Args:
        record: measurements of a row.
        rate: "tokens" or "sentences" to plot the time of one of them; empty to plot the time of the job.

    Returns:
        The median time in milliseconds, and the extra memory in MiB.
    """
    seconds = 1 / record[f"{rate}_per_second"] if rate else record["seconds"]["median"]
    # A logarithmic axis has no zero.
    memory = max(record["extra_bytes"] / MIB, 1e-3)
    return {f"ms of one {rate[:-1]}" if rate else "ms": 1000 * seconds, "extra MiB": memory}


def draw(ax: Any, title: str, label: str, records: Sequence[Record]) -> None:
    """Draw one curve per row.

    Args:
        ax: matplotlib axes.
        title: title of the plot.
        label: label of the value to draw, as returned by :func:`heights`.
        records: measurements. They are drawn against the length, or against the row if they have no length.
    """
    for form in dict.fromkeys(record["form"] for record in records):
        points = [record for record in records if record["form"] == form]
        x = [point["case"].get("T", form) for point in points]
        ax.plot(x, [point["drawn"][label] for point in points], marker="o", markersize=3, label=form)
    has_length = "T" in records[0]["case"]
    if has_length:
        ax.set_xscale("log", base=2)
    ax.set(xlabel="T" if has_length else "row", ylabel=label, yscale="log")
    ax.set_title(title, fontsize="small")
    ax.grid(True, alpha=0.3)
    ax.legend(fontsize="x-small")
