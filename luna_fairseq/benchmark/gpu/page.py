"""What a run has found, as a page of Markdown and as JSON; written anew whenever there is more."""

import json
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence

from luna_fairseq.benchmark.gpu.supervise import Outcome, Row, Section
from luna_fairseq.benchmark.report import format_spread, short
from luna_fairseq.files.writing import replace_file

MIB = 2**20


class Found(NamedTuple):
    """A section and what has become of it."""

    section: Section
    outcome: Outcome


def write(folder: Path, about: Dict[str, Any], found: Sequence[Found]) -> None:
    """``gpu.json`` and ``gpu.md`` of the folder, each whole or not at all."""
    values = {
        "about": about,
        **{section.name: {"title": section.title, **vars(outcome)} for section, outcome in found},
    }
    text = json.dumps(values, indent=1) + "\n"
    replace_file(folder / "gpu.json", lambda path: path.write_text(text, encoding="utf-8"))
    lines = "\n".join(page(about, found)) + "\n"
    replace_file(folder / "gpu.md", lambda path: path.write_text(lines, encoding="utf-8"))


def page(about: Dict[str, Any], found: Sequence[Found]) -> List[str]:
    """The lines of ``gpu.md``."""
    lines = ["# Measured on a GPU", "", "Written by `python -m luna_fairseq.benchmark.gpu`.", ""]
    lines += [*(f"- {name}: {value}" for name, value in about.items()), "", *verdict(found), ""]
    for section, outcome in found:
        shown = section.name if section.name in TABLES else "times"
        if section.name.endswith("-checks") and not outcome.failed:
            continue
        lines += [f"## {section.title}", "", *([section.notes, ""] if section.notes else [])]
        lines += TABLES[shown](outcome.rows) if outcome.rows else []
        lines += trouble(outcome)
        lines.append("")
    return lines


def verdict(found: Sequence[Found]) -> List[str]:
    """What has to be known before any figure is read."""
    wrong = [
        f"{row['job']}: error {row['worst']:.1e}, allowed {row['tolerance']:.0e}"
        for section, outcome in found
        for row in outcome.rows
        if section.name == "parity" and not row["equal"]
    ]
    failed = sum(len(outcome.failed) for _, outcome in found)
    left_out = sum(len(outcome.left_out) for _, outcome in found)
    compared = sum(len(outcome.rows) for section, outcome in found if section.name == "parity")
    lines = [f"**{len(wrong)} of {compared} comparisons of the kernels are WRONG**:" if wrong else
             f"The kernels are equal to the definition in {compared} of {compared} comparisons."]  # fmt: skip
    if not compared:
        lines = ["No kernel was compared."]
    lines += [f"- WRONG {line}" for line in wrong]
    return [*lines, "", f"Jobs that failed: {failed}; left out for want of time: {left_out}."]


def trouble(outcome: Outcome) -> List[str]:
    """What failed and what was left out."""
    lines = [f"- FAILED {key}: {why}" for key, why in outcome.failed.items()]
    if outcome.left_out:
        lines.append(f"- left out for want of time: {'; '.join(outcome.left_out)}")
    return ["", *lines] if lines and outcome.rows else lines


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> List[str]:
    """Of Markdown."""
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


def machine_table(rows: Sequence[Row]) -> List[str]:
    """Names, and rates that were measured."""
    from luna_fairseq.benchmark.gpu.machine import datasheet

    (row,) = rows
    known = datasheet(row)
    rates = {"bandwidth": row["bandwidth"], **row["flops"]}
    cells = [
        [name, f"{rate / 1e12:.3g} T/s", f"{known[name] / 1e12:.3g} T/s" if known else "-"]
        for name, rate in rates.items()
    ]
    about = ", ".join(f"{name} {row[name]}" for name in ("device", "torch", "triton", "python"))
    return [about, "", *table(["rate", "measured", "datasheet"], cells)]


def parity_table(rows: Sequence[Row]) -> List[str]:
    """An error a case."""
    cells = [
        [row["job"], f"{row['worst']:.1e}", f"{row['tolerance']:.0e}", "yes" if row["equal"] else "**NO**",
         short(row["seconds"])]
        for row in rows
    ]  # fmt: skip
    return table(["case", "worst error", "allowed", "equal", "s"], cells)


def resources_table(rows: Sequence[Row]) -> List[str]:
    """What each kernel takes."""
    cells = []
    for row in rows:
        programs = ", ".join(
            f"{name} {o['programs']} ({100 * o['share']:.0f}% of its warps; {o['limit']})"
            for name, o in row["occupancy"].items()
        )
        paper = row["paper"]
        cells.append([
            row["job"], str(row["plan"]["warps"]), f"{row['registers']} ({paper['registers']})",
            str(row["spill_bytes"]), f"{row['shared']:,} ({paper['shared']:,})", programs,
        ])  # fmt: skip
    return table(
        ["kernel", "warps", "registers", "spilled, bytes", "shared, bytes", "programs on an SM"], cells
    )


def times_table(rows: Sequence[Row]) -> List[str]:
    """Times, ratios and the roofline."""
    peers = list(dict.fromkeys(peer for row in rows for peer in row["speed_ratio"]))
    header = ["case", "form", "ms [quartiles]", *(f"speed / {peer}" for peer in peers)]
    header += ["extra MiB", "GFLOP", "MB", "bound", "least ms", "share reached"]
    cells = []
    for row in rows:
        ratios = [row["speed_ratio"].get(peer) for peer in peers]
        cells.append([
            row["job"], row["form"],
            format_spread(*(1000 * row["seconds"][name] for name in ("median", "q1", "q3"))),
            *("-" if ratio is None else short(ratio["median"]) for ratio in ratios),
            short(row["extra_bytes"] / MIB), *roofline_cells(row["roofline"]),
        ])  # fmt: skip
    return table(header, cells)


def roofline_cells(roof: Dict[str, Any]) -> List[str]:
    """The roofline of a row."""
    if not roof:
        return ["-"] * 5
    least, share = short(1000 * roof["least_seconds"]), f"{100 * roof['share']:.0f}%"
    return [short(roof["flops"] / 1e9), short(roof["bytes"] / 1e6), roof["bound"], least, share]


TABLES = {
    "machine": machine_table,
    "parity": parity_table,
    "resources": resources_table,
    "times": times_table,
}
