"""Parser of fairseq-train's logs, in every ``--log-format``, into columns of numbers.

The formats json, simple and tqdm report training and validation. The format none reports only the saved
checkpoints, with the score by which the best one is chosen. On a terminal and in hydra's log, each line
begins with the time and the name of the logger. In a ``--log-file``, and in early versions of fairseq, it
does not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from luna_fairseq.errors import InputError
from luna_fairseq.report.options import Options, option, printed_options

# Names of tables. The lines of INNER average the last updates, those of EPOCH a whole epoch.
INNER, EPOCH = "train_inner", "train"
SAVED = "saved"  # the table of saved checkpoints
UPDATES = "num_updates"
# Name of a column -> its values, one for each line of the log.
Table = Dict[str, np.ndarray]

_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_JSON = re.compile(r'\{"epoch": .*\}$')
_PROGRESS = re.compile(r"epoch (\d+):\s+(?:\d+%\|[^|]*\| )?(\d+) ?/ ?(\d+) (?:\[[^\]]*?(?=\w+=))?(?=\w+=)")
_END = re.compile(r"epoch (\d+) \| (?:valid on '([^']*)' subset \| )?(?=\w+ [-+.\w]+ \| )")
_FIGURE = re.compile(r'([\w./]+)("?: "?|=| )([-+.\w]+)')
_SAVED = re.compile(r"Saved checkpoint .*\(epoch (\d+) @ (\d+) updates, score ([^)\s]+)\)")
_OPTIONS = re.compile(r"\{'_name': |Namespace\(")
_PARAMETERS = re.compile(r"num\. (?:shared )?model params: ([\d,]+)")
_MADE_WITH = re.compile(r"luna_fairseq (\d[\w.+]*)(?: \(commit ([0-9a-f]{7,64})\))?$")
_MARK = re.compile(rb"begin training epoch|train_inner|epoch\b[^\n]{0,400}\bnum_updates\b")
_HEAD = 1 << 20  # number of bytes at the beginning of a file in which a training log is recognised


@dataclass
class Log:
    """Contents of the logs of one run.

    Attributes:
        tables: tables by name: INNER, EPOCH, SAVED, and one for each validation subset. The values of a table
            are in the order of updates, NaN if a line of the log lacks the column.
        options: options with which fairseq-train was started, or None if the log does not state them.
        parameters: number of model parameters, or None if the log does not state it.
        made_with: version of luna_fairseq and, for a checkout, its commit. None if the log does not state
            the version.
        finished: True if the training ended and was not resumed afterwards.
        cut: True if the last line is incomplete.
    """

    tables: Dict[str, Table] = field(default_factory=dict)
    options: Optional[Options] = None
    parameters: Optional[int] = None
    made_with: Optional[str] = None
    finished: bool = False
    cut: bool = False

    @property
    def training(self) -> Table:
        """Figures of training within epochs, or once per epoch if the log has no others. May be empty."""
        return self.tables.get(INNER) or self.tables.get(EPOCH) or {}

    @property
    def subsets(self) -> List[str]:
        """Names of the subsets on which the model was validated."""
        return [name for name in self.tables if name not in (INNER, EPOCH, SAVED)]


def is_training_log(path: Path) -> bool:
    """Return True if the beginning of a file contains lines of a training log.

    Args:
        path: path of the file. The result is False if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return _MARK.search(file.read(_HEAD)) is not None
    except OSError:
        return False


def made_with(text: Optional[str]) -> Optional[str]:
    """Extract the version of luna_fairseq from a line of a log or an entry of a checkpoint.

    Args:
        text: text that may contain the version, or None.

    Returns:
        The version and the abbreviated commit, or None if the text contains no version.

    Example:
        >>> made_with("luna_fairseq 0.2.0 (commit 0123456789abcdef)")
        '0.2.0, commit 0123456789ab'
    """
    match = _MADE_WITH.search(text or "")
    return ", commit ".join(part[:12] for part in match.groups() if part) if match else None


def read_logs(paths: Sequence[Path]) -> Log:
    """Read the logs of one run and merge them.

    Args:
        paths: paths of the logs, oldest first. A resumed run usually has several.

    Returns:
        The merged log. If an update was repeated after a restart, the later line counts.

    Raises:
        InputError: A file cannot be read, or none of the files is a log of fairseq-train.
    """
    reader = _LogReader()
    for path in paths:
        try:
            reader.read(path.read_bytes())
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
    log = reader.log()
    if not log.tables and log.options is None:
        raise InputError(
            f"{paths[0]} is not a log of fairseq-train: it has no line of training or validation. Give the "
            "folder or the log of a run."
        )
    return log


class _LineFormat:
    """Lines that list the same columns in the same way, and the values read from them.

    One compiled regular expression for all these lines is much faster than splitting each line.

    Args:
        table_name: name of the table to which the lines belong, unless JSON prefixes give another name.
        head: names of the columns at the beginning of the line, whose values are passed separately.
        stats: the rest of the first such line, from which the expression is built.

    Attributes:
        table_name: name of the table to which the lines belong.
        has_updates: True if the lines contain the number of updates. Other lines are no statistics.
        rows: values of the lines read so far, as text.
    """

    def __init__(self, table_name: str, head: Tuple[str, ...], stats: str) -> None:
        names, pattern, position = [], [], 0
        for figure in _FIGURE.finditer(stats):
            names.append(figure[1])
            pattern += [re.escape(stats[position : figure.start(3)]), r"([-+.\w]+)"]
            position = figure.end(3)
        self.match = re.compile("".join(pattern) + re.escape(stats[position:])).fullmatch
        # In JSON the name of the subset is a prefix of each column: valid_loss, valid_num_updates.
        prefix = next((name[: -len(UPDATES)] for name in names if name.endswith(UPDATES)), "")
        self.has_updates = prefix + UPDATES in names
        self.table_name = prefix[:-1] or table_name
        self.names = (*head, *(name[len(prefix) :] if name.startswith(prefix) else name for name in names))
        self.rows: List[Tuple[str, ...]] = []

    def table(self) -> Table:
        """Return the columns of all lines, with ``epoch`` as the fractional number of finished epochs."""
        table = {name: _to_numbers(column) for name, column in zip(self.names, zip(*self.rows))}
        if "_done" in table:
            table["epoch"] = table["epoch"] - 1 + table.pop("_done") / np.maximum(table.pop("_batches"), 1)
        if "update" in table:  # JSON's name of the fractional number of finished epochs
            table["epoch"] = table.pop("update")
        return table


class _LogReader:
    """Reader that collects the lines of several logs into one :class:`Log`."""

    def __init__(self) -> None:
        self._log = Log()
        self._formats: List[_LineFormat] = []
        # The formats of each kind of line, newest first, because a line usually repeats the last format.
        self._newest_formats: Dict[str, List[_LineFormat]] = {}

    def read(self, content: bytes) -> None:
        """Read the content of one file. An incomplete last line is skipped.

        Args:
            content: content of a log file.
        """
        text = content.decode("utf-8", errors="replace")
        lines = re.split(r"[\r\n]+", _TERMINAL.sub("", text) if "\x1b" in text else text)
        self._log.cut = bool(lines.pop().strip())
        for line in lines:
            self._read_line(line.rstrip())

    def log(self) -> Log:
        """Return the merged log of all files read so far."""
        tables: Dict[str, List[Table]] = {}
        for line_format in self._formats:
            tables.setdefault(line_format.table_name, []).append(line_format.table())
        self._log.tables = {
            name: _drop_repeated_updates(_concatenate(parts)) for name, parts in tables.items()
        }
        return self._log

    def _read_line(self, line: str) -> None:
        """Read a line of statistics, of any format, or any other line.

        Args:
            line: line of the log without its end.
        """
        match = _JSON.search(line) if '{"' in line else None
        if match:
            return self._add_statistics("json", INNER, (), (), match[0])
        if "epoch" not in line:
            return self._read_other_line(line)
        match = _PROGRESS.search(line) if "=" in line else None
        if match:
            head = ("epoch", "_done", "_batches")
            return self._add_statistics("progress", INNER, head, match.groups(), line[match.end() :])
        match = _END.search(line)
        if match:
            name = match[2] or EPOCH
            return self._add_statistics(name, name, ("epoch",), (match[1],), line[match.end() :])
        return self._read_other_line(line)

    def _add_statistics(
        self, kind: str, table_name: str, names: Tuple[str, ...], head: Tuple[str, ...], stats: str
    ) -> None:
        """Add a line of statistics to the first format that matches, or to a new format.

        Args:
            kind: kind of line, under which formats are looked up.
            table_name: name of the table to which the line belongs.
            names: names of the values in ``head``.
            head: values from the beginning of the line.
            stats: rest of the line, with names and values.
        """
        formats = self._newest_formats.setdefault(kind, [])
        for line_format in formats:
            match = line_format.match(stats)
            if match:
                line_format.rows.append(head + match.groups())
                return
        line_format = _LineFormat(table_name, names, stats)
        match = line_format.match(stats)
        if match and line_format.has_updates:
            line_format.rows.append(head + match.groups())
            formats.insert(0, line_format)
            self._formats.append(line_format)

    def _read_other_line(self, line: str) -> None:
        """Read a line without statistics, such as a message about a saved checkpoint, or the printed options.

        Args:
            line: line of the log without its end.
        """
        saved = _SAVED.search(line)
        if saved:
            stats = f"epoch {saved[1]} | {UPDATES} {saved[2]} | score {saved[3]}"
            self._add_statistics(SAVED, SAVED, (), (), stats)
        elif "done training in" in line:
            self._log.finished = True
        elif "begin training epoch" in line:
            self._log.finished = False
        elif _OPTIONS.search(line):
            options = printed_options(line)
            # Options with a path belong to a command that loads a model, such as fairseq-generate.
            if not option(options, "path"):
                self._log.options = options or self._log.options
        elif "model params" in line and not self._log.parameters:
            found = _PARAMETERS.search(line)
            self._log.parameters = int(found[1].replace(",", "")) if found else None
        elif "luna_fairseq " in line:
            self._log.made_with = made_with(line) or self._log.made_with


def _to_numbers(column: Sequence[str]) -> np.ndarray:
    try:
        return np.array(list(map(float, column)))
    except ValueError:
        return np.array([_to_number(value) for value in column])


def _to_number(text: str) -> float:
    """Convert text to a number.

    Args:
        text: number, ``None``, ``null`` or a word.

    Returns:
        The number. NaN if the text is not a number.
    """
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _concatenate(tables: List[Table]) -> Table:
    """Concatenate tables.

    Args:
        tables: tables, each with a column of update numbers.

    Returns:
        Table with the columns of all tables. Cells of columns that a table lacks are NaN.
    """
    names = {name: None for table in tables for name in table}
    sizes = [len(table[UPDATES]) for table in tables]
    return {
        name: np.concatenate([table.get(name, np.full(size, np.nan)) for table, size in zip(tables, sizes)])
        for name in names
    }


def _drop_repeated_updates(table: Table) -> Table:
    """Keep the last line of each update, because a restarted run repeats updates.

    Args:
        table: columns by name, one of which holds update numbers.

    Returns:
        Table with increasing update numbers.
    """
    updates = table[UPDATES]
    smallest_later_update = np.minimum.accumulate(np.append(updates, np.inf)[::-1])[::-1][1:]
    is_last = updates < smallest_later_update
    return {name: values[is_last] for name, values in table.items()}
