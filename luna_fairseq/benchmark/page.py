"""The measurements as tables of Markdown for people, and as JSON for programs."""

import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Sequence

import torch

import luna_fairseq
from luna_fairseq.benchmark.measure import Record, Settings
from luna_fairseq.benchmark.task import Section
from luna_fairseq.files.writing import write_text
from luna_fairseq.provenance import commit

MIB = 2**20


def environment(settings: Settings) -> Dict[str, Any]:
    """Where and with what a run takes place."""
    return {
        "hardware": torch.cuda.get_device_name(settings.device) if settings.on_gpu else processor(),
        "logical_cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        **vars(settings),
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
    text = json.dumps(values, indent=1) + "\n"
    write_text(path, text)


def write_sections(path: Path, where: Dict[str, Any], sections: Sequence[Section]) -> None:
    """Write all sections to a file."""
    write_json(path, {"environment": where, **{section.name: asdict(section) for section in sections}})


def table_of(records: Sequence[Record], rate: str, peers: Sequence[str]) -> str:
    """The table of some records: times, rates, speeds as multiples of those of the peers, memory."""
    rates = [f"{rate}/s"] if rate else []
    header = [
        *records[0]["case"],
        "row",
        "ms [quartiles]",
        *rates,
        *(f"/ {peer}" for peer in peers),
        "extra MiB",
    ]
    rows = []
    for record in records:
        row = [*map(str, record["case"].values()), record["form"]]
        row.append(with_quartiles({name: 1000 * record["seconds"][name] for name in ("median", "q1", "q3")}))
        row += [short(record[f"{rate}_per_second"])] if rate else []
        for peer in peers:
            ratio = record["speed_ratio"].get(peer)
            row.append("-" if ratio is None else "1" if record["form"] == peer else with_quartiles(ratio))
        rows.append([*row, f"{record['extra_bytes'] / MIB:,.1f}"])
    return table(header, rows)


def with_quartiles(values: Dict[str, float]) -> str:
    """Median [quartile quartile]."""
    return f"{short(values['median'])} [{short(values['q1'])} {short(values['q3'])}]"


def short(value: float) -> str:
    """Three digits, never an exponent."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def cell_of(value: Any) -> str:
    """Text, or a number."""
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def table_of_rows(rows: Sequence[Dict[str, Any]]) -> str:
    """A table of rows that have the same columns."""
    return table(list(rows[0]), [list(row.values()) for row in rows]) if rows else ""


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table of Markdown in equal columns, and an empty line that ends it."""
    texts: List[List[str]] = [list(header), *([cell_of(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts)]
    texts.insert(1, ["-" * width for width in widths])
    lines = (" | ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in texts)
    return "\n".join([*(f"| {line} |" for line in lines), ""])
