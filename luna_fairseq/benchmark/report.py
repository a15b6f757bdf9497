"""The measurements as a table for people, which grows as they come, and as JSON for programs."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from luna_fairseq.benchmark.exponents import Theory, exponents
from luna_fairseq.benchmark.measure import Case, Result, Spread, speed_ratio, spread
from luna_fairseq.files.writing import replace_file

MIB = 2**20
# Widest figures there are; a table is printed before all of them are known.
TIME_WIDTH = len("99,999 [99,999 99,999]")
RATIO_WIDTH = len("0.999 [0.999 0.999]")
MEMORY_WIDTH = len("999,999.9")


@dataclass
class Section:
    """The results of one task.

    Attributes:
        name: of the sub-command
        notes: what was measured, and how to read it; one string a line
        peers: forms that every form of the same case is compared with
        results: in the table's order
        length: column of the case that the plot has as its abscissa (default: it shows ratios as bars)
        panels: columns of the case by whose values the plot has panels of their own
        rate: unit of a result's count, as ``tokens`` (default: the table shows no rate)
        theory: of every form, where exponents are fitted
        profiles: where each form's time goes, if that was asked for
    """

    name: str
    notes: List[str]
    peers: Sequence[str]
    results: List[Result] = field(default_factory=list)
    length: Optional[str] = None
    panels: Sequence[str] = ()
    rate: Optional[str] = None
    theory: Dict[str, Theory] = field(default_factory=dict)
    profiles: List[Dict[str, Any]] = field(default_factory=list)


def records(section: Section, results: Sequence[Result] = ()) -> List[Dict[str, Any]]:
    """Results as JSON values: times in seconds, memory in bytes, ratios of speeds.

    Args:
        section: that they belong to
        results: of whole cases (default: all of the section)
    """
    results = results or section.results
    peers = {(str(r.case), r.form): r for r in results if r.form in section.peers}
    values = []
    for result in results:
        value = {
            "case": result.case,
            "form": result.form,
            "seconds": {**spread(result.seconds)._asdict(), "samples": result.seconds},
            "calls_per_sample": result.calls,
            "speed_ratio": {
                peer: speed_ratio(result, peers[str(result.case), peer])._asdict()
                for peer in section.peers
                if (str(result.case), peer) in peers
            },
            "extra_bytes": result.extra_bytes,
        }
        if section.rate:
            value[f"{section.rate}_per_second"] = result.count / spread(result.seconds).median
        values.append(value)
    return values


def write_json(path: Path, environment: Dict[str, Any], sections: Sequence[Section]) -> None:
    """Write all sections to a file, which appears whole or not at all."""
    values = {
        s.name: {
            "notes": list(s.notes),
            "peers": list(s.peers),
            "results": records(s),
            **({"exponents": exponents(records(s), s.theory)} if s.theory else {}),
            **({"profiles": s.profiles} if s.profiles else {}),
        }
        for s in sections
    }
    text = json.dumps({"environment": environment, **values}, indent=1) + "\n"
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


class Table:
    """Lines of a section's table.

    Args:
        section: whose results come
        cases: all that are going to be measured
        forms: names of all forms
    """

    def __init__(self, section: Section, cases: Sequence[Case], forms: Sequence[str]):
        self.section = section
        self.columns = list(cases[0])
        texts = [[name, *(str(case[name]) for case in cases)] for name in self.columns] + [["form", *forms]]
        self.left = [max(map(len, column)) for column in texts]
        ratios = [f"speed / {peer}" for peer in section.peers]
        self.header = [
            *self.columns,
            "form",
            "ms [quartiles]",
            *([f"{section.rate}/s"] if section.rate else []),
        ]
        self.header += [*ratios, "extra MiB"]
        rate = [max(len(f"{section.rate}/s"), MEMORY_WIDTH)] if section.rate else []
        self.right = [TIME_WIDTH, *rate, *(max(len(name), RATIO_WIDTH) for name in ratios), MEMORY_WIDTH]

    def head(self) -> str:
        """Name, notes and column names."""
        return "\n".join(["", f"== {self.section.name} ==", *self.section.notes, "", self.line(self.header)])

    def rows(self, results: Sequence[Result]) -> str:
        """The lines of a case, and an empty one that ends it."""
        return "\n".join([*(self.line(self.cells(record)) for record in records(self.section, results)), ""])

    def cells(self, record: Dict[str, Any]) -> List[str]:
        """One row."""
        row = [str(record["case"][name]) for name in self.columns] + [record["form"]]
        row.append(format_spread(*(1000 * record["seconds"][name] for name in Spread._fields)))
        if self.section.rate:
            row.append(short(record[f"{self.section.rate}_per_second"]))
        for peer in self.section.peers:
            ratio = record["speed_ratio"].get(peer)
            row.append("-" if ratio is None else "1" if record["form"] == peer else format_spread(**ratio))
        return [*row, f"{record['extra_bytes'] / MIB:,.1f}"]

    def line(self, cells: Sequence[str]) -> str:
        """Cells in equal columns, those of the case and the form flush left."""
        left, right = cells[: len(self.left)], cells[len(self.left) :]
        padded = [cell.ljust(width) for cell, width in zip(left, self.left)]
        return "  ".join([*padded, *(cell.rjust(width) for cell, width in zip(right, self.right))]).rstrip()


def format_spread(median: float, q1: float, q3: float) -> str:
    """Median [quartile quartile]."""
    return f"{short(median)} [{short(q1)} {short(q3)}]"


def short(value: float) -> str:
    """Three digits, never an exponent."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"
