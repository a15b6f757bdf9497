"""Parser of fairseq-train logs of any ``--log-format``, which returns tables of numbers.

The formats json, simple and tqdm contain training and validation statistics. The format none contains only
the saved checkpoints with their scores. Lines may start with the time and the logger name, as on a terminal
and in hydra's log.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from luna_fairseq.errors import InputError
from luna_fairseq.report.options import Options, get_option, printed_options

# Names of tables. A line of INNER averages the latest updates, and a line of EPOCH averages a whole epoch.
INNER, EPOCH = "train_inner", "train"
SAVED = "saved"  # table of saved checkpoints
UPDATES = "num_updates"  # column that contains the number of updates
# Table of statistics: column name -> values, one per line of the log.
Table = Dict[str, np.ndarray]

_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_JSON = re.compile(r'\{"epoch": .*\}$')
_PROGRESS = re.compile(r"epoch (\d+):\s+(?:\d+%\|[^|]*\| )?(\d+) ?/ ?(\d+) (?:\[[^\]]*?(?=\w+=))?(?=\w+=)")
_END = re.compile(r"epoch (\d+) \| (?:valid on '([^']*)' subset \| )?(?=\w+ [-+.\w]+ \| )")
_FIGURE = re.compile(r'([\w./]+)("?: "?|=| )([-+.\w]+)')
_SAVED = re.compile(r"Saved checkpoint .*\(epoch (\d+) @ (\d+) updates, score ([^)\s]+)\)")
_OPTIONS = re.compile(r"\{'_name': |Namespace\(")
_PARAMETERS = re.compile(r"num\. (?:shared )?model params: ([\d,]+)")
_VERSION = re.compile(r"luna_fairseq (\d[\w.+]*)(?: \(commit ([0-9a-f]{7,64})\))?$")
_MARK = re.compile(
    rb"begin training epoch \d|train_inner\W+(INFO\W+)?epoch|epoch\W+\d[^\n]{0,400}\bnum_updates\W+\d"
)
_TIME = re.compile(rb"^\[?(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", re.MULTILINE)
_HEAD = 1 << 20  # number of bytes at the beginning of a file that are searched for training log lines


@dataclass
class Log:
    """Contents of the logs of one training run.

    Attributes:
        tables: tables of statistics, keyed by name: "train_inner" (within epochs), "train" (per epoch),
            "saved" (saved checkpoints), and one per validation subset. A table maps column names to values in
            the order of updates. A value is NaN if the log line does not contain the column.
        options: options with which fairseq-train was started, or None.
        parameters: number of model parameters, or None.
        version: version of luna_fairseq and, for a git checkout, the commit, or None.
        finished: True if the training ended and was not resumed afterwards.
        is_truncated: True if the last line is incomplete.
    """

    tables: Dict[str, Table] = field(default_factory=dict)
    options: Optional[Options] = None
    parameters: Optional[int] = None
    version: Optional[str] = None
    finished: bool = False
    is_truncated: bool = False

    @property
    def training(self) -> Table:
        """Training statistics within epochs or, without any, per epoch. Empty if the log has neither."""
        return self.tables.get(INNER) or self.tables.get(EPOCH) or {}

    @property
    def subsets(self) -> List[str]:
        """Names of the validation subsets in the log, such as "valid"."""
        return [name for name in self.tables if name not in (INNER, EPOCH, SAVED)]


def is_training_log(path: Path) -> bool:
    """Return True if the first megabyte of a file can be read and looks like a fairseq-train log."""
    try:
        with path.open("rb") as file:
            return _MARK.search(file.read(_HEAD)) is not None
    except OSError:
        return False


def start_time(path: Path) -> Tuple[str, float]:
    """Return the sort key of a log: the first time in its lines, and the time of its last modification.

    The time of modification, which copying changes, decides only if no line has a time.
    """
    modified = path.stat().st_mtime
    with path.open("rb") as file:
        match = _TIME.search(file.read(_HEAD))
    if match is None:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(modified)), modified
    return match[1].decode(), modified


def extract_version(text: Optional[str]) -> Optional[str]:
    """Return the version and abbreviated commit of luna_fairseq at the end of a text, or None.

    Example:
        >>> extract_version("luna_fairseq 0.2.0 (commit 0123456789abcdef)")
        '0.2.0, commit 0123456789ab'
    """
    match = _VERSION.search(text or "")
    return ", commit ".join(part[:12] for part in match.groups() if part) if match else None


def read_logs(paths: Sequence[Path]) -> Log:
    """Read and merge the log files of one run, given from oldest to newest.

    If a resumed run repeated an update, the later line is kept. Raises InputError if a file cannot be read,
    or none of the files is a fairseq-train log.
    """
    reader = _LogReader()
    for path in paths:
        try:
            reader.read(path.read_bytes())
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    log = reader.log()
    if not log.tables and log.options is None:
        raise InputError(
            f"{paths[0]} is not a log of fairseq-train, because it has no line of training or validation. "
            "Give the folder or the log of a run."
        )
    return log


class _LineFormat:
    """Parser for the log lines of one table, which share their columns and format.

    The lines are matched with a regular expression built from the first line.

    Args:
        table_name: name of the table for the lines, such as "valid". In JSON, a column prefix overrides it.
        head_names: names of the values before the statistics, such as "epoch".
        statistics: statistics of the first line, such as "loss 3.2 | num_updates 40".
    """

    def __init__(self, table_name: str, head_names: Tuple[str, ...], statistics: str) -> None:
        names, pattern, position = [], [], 0
        for figure in _FIGURE.finditer(statistics):
            names.append(figure[1])
            pattern += [re.escape(statistics[position : figure.start(3)]), r"([-+.\w]+)"]
            position = figure.end(3)
        self.match = re.compile("".join(pattern) + re.escape(statistics[position:])).fullmatch
        # In JSON, the name of the subset is a prefix of each column: valid_loss, valid_num_updates.
        prefix = next((name[: -len(UPDATES)] for name in names if name.endswith(UPDATES)), "")
        self.has_updates = prefix + UPDATES in names
        self.table_name = prefix[:-1] or table_name
        self.names = (
            *head_names,
            *(name[len(prefix) :] if name.startswith(prefix) else name for name in names),
        )
        self.rows: List[Tuple[str, ...]] = []

    def table(self) -> Table:
        """Return the values of all parsed lines as one array per column.

        The column ``epoch`` counts completed epochs and may be fractional.
        """
        table = {name: _to_numbers(column) for name, column in zip(self.names, zip(*self.rows))}
        if "_done" in table:
            table["epoch"] = table["epoch"] - 1 + table.pop("_done") / np.maximum(table.pop("_batches"), 1)
        if "update" in table:  # name in JSON for the fractional number of completed epochs
            table["epoch"] = table.pop("update")
        return table


class _LogReader:
    """Reader that merges several log files of one training run into one :class:`Log`."""

    def __init__(self) -> None:
        self._log = Log()
        self._lines = 0  # number of lines with statistics so far
        self._formats: List[_LineFormat] = []
        # Formats, keyed by the kind of line. The newest one is tried first, because most lines repeat it.
        self._newest_formats: Dict[str, List[_LineFormat]] = {}

    def read(self, content: bytes) -> None:
        """Read the content of one log file, and skip the last line if it is incomplete."""
        text = content.decode("utf-8", errors="replace")
        lines = re.split(r"[\r\n]+", _TERMINAL.sub("", text) if "\x1b" in text else text)
        self._log.is_truncated = bool(lines.pop().strip())
        for line in lines:
            self._read_line(line.rstrip())

    def log(self) -> Log:
        """Return the merged log of all files read so far. If an update is repeated, the last line is kept."""
        tables: Dict[str, List[Table]] = {}
        for line_format in self._formats:
            tables.setdefault(line_format.table_name, []).append(line_format.table())
        self._log.tables = {name: _drop_repeated_updates(_merge(parts)) for name, parts in tables.items()}
        return self._log

    def _read_line(self, line: str) -> None:
        """Parse a line of any log format, and add its statistics to this log."""
        match = _JSON.search(line) if '{"' in line else None
        if match:
            return self._add_statistics("json", INNER, (), (), match[0])
        if "epoch" not in line:
            return self._read_other_line(line)
        match = _PROGRESS.search(line) if "=" in line else None
        if match:
            head_names = ("epoch", "_done", "_batches")
            return self._add_statistics("progress", INNER, head_names, match.groups(), line[match.end() :])
        match = _END.search(line)
        if match:
            name = match[2] or EPOCH
            return self._add_statistics(name, name, ("epoch",), (match[1],), line[match.end() :])
        return self._read_other_line(line)

    def _add_statistics(
        self,
        kind: str,
        table_name: str,
        head_names: Tuple[str, ...],
        head_values: Tuple[str, ...],
        statistics: str,
    ) -> None:
        """Parse a log line with statistics, and add them to the table ``table_name``.

        ``statistics`` is the part of the line that holds the statistics. ``head_names`` and ``head_values``
        are the names and the texts of the values before it, such as the epoch. ``kind`` is "json", "progress"
        or the name of a table. The line is matched with the formats of earlier lines of this kind. If none
        fits, a new :class:`_LineFormat` is stored. A line without an update count is ignored.
        """
        self._lines += 1
        head_names, head_values = ("_line", *head_names), (str(self._lines), *head_values)
        formats = self._newest_formats.setdefault(kind, [])
        for line_format in formats:
            match = line_format.match(statistics)
            if match:
                line_format.rows.append(head_values + match.groups())
                return
        line_format = _LineFormat(table_name, head_names, statistics)
        match = line_format.match(statistics)
        if match and line_format.has_updates:
            line_format.rows.append(head_values + match.groups())
            formats.insert(0, line_format)
            self._formats.append(line_format)

    def _read_other_line(self, line: str) -> None:
        """Update the log from a line without statistics, such as a line that reports a saved checkpoint."""
        saved = _SAVED.search(line)
        if saved:
            statistics = f"epoch {saved[1]} | {UPDATES} {saved[2]} | score {saved[3]}"
            self._add_statistics(SAVED, SAVED, (), (), statistics)
        elif "done training in" in line:
            self._log.finished = True
        elif "begin training epoch" in line:
            self._log.finished = False
        elif _OPTIONS.search(line):
            options = printed_options(line)
            # Options that include a path belong to a command that loads a model, such as fairseq-generate.
            if not get_option(options, "path"):
                self._log.options = options or self._log.options
        elif "model params" in line and not self._log.parameters:
            found = _PARAMETERS.search(line)
            self._log.parameters = int(found[1].replace(",", "")) if found else None
        elif "luna_fairseq " in line:
            self._log.version = extract_version(line) or self._log.version


def _to_numbers(column: Sequence[str]) -> np.ndarray:
    """Convert a column of text to an array of numbers, with NaN for text that is not a number."""
    try:
        return np.array(list(map(float, column)))
    except ValueError:
        return np.array([_to_number(value) for value in column])


def _to_number(text: str) -> float:
    """Convert text from a log to a number, or to NaN if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _merge(tables: List[Table]) -> Table:
    """Merge tables of log statistics by their column ``_line``, the order of their lines in the log.

    The column is removed. A column that a table lacks is filled with NaN.
    """
    names = {name: None for table in tables for name in table}
    sizes = [len(table[UPDATES]) for table in tables]
    merged = {
        name: np.concatenate([table.get(name, np.full(size, np.nan)) for table, size in zip(tables, sizes)])
        for name in names
    }
    order = np.argsort(merged.pop("_line"))
    return {name: values[order] for name, values in merged.items()}


def _drop_repeated_updates(table: Table) -> Table:
    """Keep only the last line of each update, because a resumed run may repeat updates.

    For example, the first, fourth and fifth of five lines with the updates [1, 2, 3, 2, 3] remain.
    """
    updates = table[UPDATES]
    smallest_later_update = np.minimum.accumulate(np.append(updates, np.inf)[::-1])[::-1][1:]
    is_last = updates < smallest_later_update
    return {name: values[is_last] for name, values in table.items()}
