"""The measurements as a table for people and as JSON for programs."""

import json
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

from fairseq import __version__ as fairseq_version
from luna_fairseq import __version__
from luna_fairseq.benchmark.measure import Result, Settings, Spread, speed_ratio, spread
from luna_fairseq.errors import InputError
from luna_fairseq.files.finished_steps import replacing

MIB = 2**20


@dataclass(frozen=True)
class Section:
    """The results of one sub-command.

    Attributes:
        name: of the sub-command
        notes: what was measured, and how to read it; one string a line
        peers: forms that every form of the same case is compared with
        results: in the table's order
        rate: unit of a job's size, as ``tokens`` (default: the table shows no rate)
        length: column of the case that the plot has as its abscissa (default: it shows ratios as bars)
        panels: columns of the case by whose values the plot has panels of their own
        rate: unit of a job's size, as ``tokens`` (default: the table shows no rate)
        sizes: job size in that unit by result, when there is a rate
    """

    name: str
    notes: Sequence[str]
    peers: Sequence[str]
    results: Sequence[Result]
    length: Optional[str] = None
    panels: Sequence[str] = ()
    rate: Optional[str] = None
    sizes: Sequence[int] = ()


def environment(settings: Settings) -> Dict[str, Any]:
    """Where and with what the run took place."""
    return {
        "hardware": hardware(settings.device),
        "logical_cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "threads": settings.threads,
        "device": settings.device,
        "repetitions": settings.repetitions,
        "seed": settings.seed,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq": fairseq_version,
        "luna_fairseq": __version__,
        "commit": commit(),
    }


def hardware(device: str) -> str:
    """Name of the GPU or of the processor."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit() -> Optional[str]:
    """Commit of the checkout that this file lies in, marked when files differ from it; None outside a checkout."""
    package = Path(__file__).resolve().parents[1]
    git = ["git", "-C", str(package)]
    try:
        # An installed copy may lie in somebody else's repository.
        subprocess.run([*git, "ls-files", "--error-unmatch", "__init__.py"], check=True, capture_output=True)
        described = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def records(section: Section) -> List[Dict[str, Any]]:
    """The results of a section as JSON values: times in seconds, memory in bytes, ratios of speeds."""
    peers = {(str(r.case), r.form): r for r in section.results if r.form in section.peers}
    values = []
    for i, result in enumerate(section.results):
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
            value[f"{section.rate}_per_second"] = section.sizes[i] / spread(result.seconds).median
        values.append(value)
    return values


def format_section(section: Section) -> str:
    """Notes and table of a section."""
    lines = [f"== {section.name} ==", *section.notes, ""]
    header = [*section.results[0].case, "form", "ms [quartiles]"]
    header += [f"{section.rate}/s"] if section.rate else []
    header += [*(f"speed / {peer}" for peer in section.peers), "extra MiB"]
    rows, previous = [header], None
    for record in records(section):
        if record["case"] != previous and previous is not None:
            rows.append([])
        previous = record["case"]
        seconds = record["seconds"]
        row = [str(value) for value in record["case"].values()] + [record["form"]]
        row.append(format_spread(*(1000 * seconds[name] for name in Spread._fields)))
        if section.rate:
            row.append(f"{record[section.rate + '_per_second']:,.0f}")
        for peer in section.peers:
            ratio = record["speed_ratio"].get(peer)
            row.append("-" if ratio is None else "1" if record["form"] == peer else format_spread(**ratio))
        row.append(f"{record['extra_bytes'] / MIB:,.1f}")
        rows.append(row)
    return "\n".join(lines + align(rows, left=len(section.results[0].case) + 1))


def format_spread(median: float, q1: float, q3: float) -> str:
    return f"{short(median)} [{short(q1)} {short(q3)}]"


def short(value: float) -> str:
    """Three digits, never an exponent."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def align(rows: Sequence[Sequence[str]], left: int) -> List[str]:
    """Rows as lines of equal columns, the first ``left`` of them flush left; an empty row is an empty line."""
    widths = [max(len(cell) for cell in column) for column in zip(*(row for row in rows if row))]
    lines = []
    for row in rows:
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return lines


def check_writable(path: Path, option: str) -> None:
    """Raise InputError unless a file can be written there: before anything is measured, not after."""
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"cannot write {path}: give {option} a file name in a folder that exists and is writable")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` to a file."""
    replace_file(path, lambda temporary: temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8"))


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Have ``write`` write beside the target and rename, so that a reader never meets half a file."""
    try:
        with replacing(path) as temporary:
            write(temporary)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
