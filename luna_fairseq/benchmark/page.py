"""Printing and saving of measurements: Markdown tables, plots and JSON files."""

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
TRAINING_PASS = "forward+backward"
# Words of the plots by the short names of the tables: benchmarks, and implementations that they compare.
WORDS = {
    "causal": "Causal attention",
    "attention": "Bidirectional attention",
    "train": "Training step",
    "decode": "Decoding by beam search",
    "lra": "Training step of a classifier of bytes",
    "apollo": "Optimizer step",
    "chunk": "Luna (this package)",
    "cumsum": "Luna, sums as published",
    "sdpa": "softmax attention (PyTorch, fused)",
    "softmax": "softmax attention, explicit weights",
    "luna": "Luna",
    "luna-naive": "Luna, explicit weights",
    "anchored": "anchored Luna, no look-up",
    "look-up": "anchored Luna with look-up",
    "transformer": "Transformer (fairseq)",
    "transformer-sdpa": "Transformer, fused attention",
    "transformer-softmax": "Transformer, explicit weights",
    "roberta-sdpa": "RoBERTa, fused attention",
    "roberta-softmax": "RoBERTa (fairseq)",
}


def describe_environment(args: argparse.Namespace) -> Dict[str, Any]:
    """Return the hardware, the software and the options of a benchmark run as JSON-serializable values."""
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
        "force": [*args.force_first, *args.force],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq": getattr(sys.modules.get("fairseq"), "__version__", None),
        "luna_fairseq": luna_fairseq.__version__,
        "commit": commit(Path(luna_fairseq.__file__).resolve().parents[1] / ".git"),
    }


def write_json(path: Path, values: Dict[str, Any]) -> None:
    """Write values to a JSON file. An existing file is replaced only once the new file is complete."""
    write_text(path, json.dumps(values, indent=1) + "\n")


def format_measurements(records: Sequence[Record], rate: str, peers: Sequence[str]) -> str:
    """Format measurements as a Markdown table with times, speeds and extra memory.

    ``rate`` is the unit of the throughput column, "tokens" or "sentences", or "" for no such column. A column
    for each implementation in ``peers`` shows the speedup of every implementation over this peer.
    """
    rows = []
    for record in records:
        row = {**{name: str(value) for name, value in record["case"].items()}, "row": record["form"]}
        row["ms [quartiles]"] = format_quartiles(record["seconds"], 1000)
        if rate:
            row[f"{rate}/s"] = format_number(record[f"{rate}_per_second"])
        for peer in peers:
            ratio = record["speed_ratio"].get(peer)
            row[f"/ {peer}"] = "1" if record["form"] == peer else format_quartiles(ratio) if ratio else "-"
        rows.append({**row, "extra MiB": f"{record['extra_bytes'] / MIB:,.1f}"})
    return format_table(rows)


def format_quartiles(values: Dict[str, float], scale: float = 1.0) -> str:
    """Format a median and its quartiles, multiplied by ``scale``, as "median [q1 q3]"."""
    median, q1, q3 = (format_number(scale * values[name]) for name in ("median", "q1", "q3"))
    return f"{median} [{q1} {q3}]"


def format_number(value: float) -> str:
    """Format a non-negative number with at least three significant digits or three decimals, such as 1.23."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def format_table(rows: Sequence[Dict[str, Any]]) -> str:
    """Format a Markdown table with aligned columns. Each row is a dictionary ``{column: cell}``."""
    formats = {float: ",.3f", int: ","}
    texts = [[format(cell, formats.get(type(cell), "")) for cell in row.values()] for row in rows]
    texts = [list(row) for row in rows[:1]] + texts
    widths = [max(map(len, column)) for column in zip(*texts)]
    texts.insert(1, ["-" * width for width in widths])
    lines = (" | ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in texts)
    return "\n".join([*(f"| {line} |" for line in lines), ""]) if rows else ""


def write_png(path: Path, sections: Sequence[Section], description: Dict[str, Any]) -> None:
    """Plot times and memory against the sequence length, and write the plots to a PNG file.

    The hardware, threads, torch version and commit in ``description`` are printed below the plots. Cases that
    differ only in length or batch size share a pair of plots, one for time and one for memory. If a benchmark
    also times the forward pass alone, only the combined forward and backward passes are plotted.
    """
    rows: Dict[str, List[Record]] = {}
    for section in sections:
        passes = {record["case"].get("pass") for record in section.results}
        for record in section.results:
            if TRAINING_PASS in passes and record["case"]["pass"] != TRAINING_PASS:
                continue
            title = plot_title(section.name, record["case"])
            rows.setdefault(title, []).append({**record, "drawn": plotted_values(record, section.rate)})
    figure = new_figure(figsize=(9.2, 3.6 * len(rows)))
    for axes, (title, records) in zip(figure.subplots(len(rows), 2, squeeze=False), rows.items()):
        for ax, label in zip(axes, records[0]["drawn"]):
            draw_curves(ax, title, label, records)
    names = ("hardware", "threads", "torch", "commit")
    figure.supxlabel(", ".join(f"{name} {description[name]}" for name in names), fontsize="small")
    save_png(figure, path)


def plot_title(name: str, case: Dict[str, Any]) -> str:
    """Return the title of a plot, such as "Causal attention, l = 16, forward and backward"."""
    settings = {setting: x for setting, x in case.items() if setting not in ("T", "sentences")}
    words = [f"{setting} = {x}" if setting == "l" else f"{setting} {x}" for setting, x in settings.items()]
    title = ", ".join([WORDS.get(name, name), *words])
    for setting, plain in ((f"pass {TRAINING_PASS}", "forward and backward"), ("padding none", "no padding")):
        title = title.replace(setting, plain)
    return title


def plotted_values(record: Record, rate: str) -> Dict[str, float]:
    """Return the time in ms and the extra memory in MiB of a measurement, keyed by axis label.

    The time is per token or per sentence if ``rate`` is "tokens" or "sentences". Otherwise it is per job.
    """
    seconds = 1 / record[f"{rate}_per_second"] if rate else record["seconds"]["median"]
    # A logarithmic axis has no zero.
    memory = max(record["extra_bytes"] / MIB, 1e-3)
    time = f"time of one {rate[:-1]} [ms]" if rate else "time [ms]"
    return {time: 1000 * seconds, "extra memory [MiB]": memory}


def draw_curves(ax: Any, title: str, label: str, records: Sequence[Record]) -> None:
    """Plot the quantity ``label`` against the sequence length, with one curve per implementation.

    ``ax`` is a matplotlib Axes object. If the records have no sequence length, draw one point per
    implementation.
    """
    for form in dict.fromkeys(record["form"] for record in records):
        points = [record for record in records if record["form"] == form]
        x = [point["case"].get("T", form) for point in points]
        y = [point["drawn"][label] for point in points]
        ax.plot(x, y, marker="o", markersize=3, label=WORDS.get(form, form))
    has_length = "T" in records[0]["case"]
    if has_length:
        ax.set_xscale("log", base=2)
        lengths = sorted({record["case"]["T"] for record in records})
        ax.set_xticks(lengths, [f"{length:,}" for length in lengths])
    ax.set(xlabel="sequence length [tokens]" if has_length else "implementation", ylabel=label, yscale="log")
    ax.set_title(title, fontsize="small")
    ax.grid(True, alpha=0.3)
    ax.legend(fontsize="x-small")
