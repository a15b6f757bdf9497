"""What fairseq-train writes into its log, in every ``--log-format``, as columns of numbers.

json, simple and tqdm tell training and validation; none tells what is saved, and with it the figure by which
the best checkpoint is chosen. A line may begin with the time and the logger's name, as on a terminal and by
hydra, or not, as in a ``--log-file`` and in the first versions of fairseq.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from luna_fairseq.errors import InputError
from luna_fairseq.report.options import Options, option, printed_options

INNER, EPOCH = "train_inner", "train"  # kinds of lines of training: of the last updates, and of a whole epoch
SAVED = "saved"  # kind of the lines that tell of a checkpoint
UPDATES = "num_updates"
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
_HEAD = 1 << 20  # bytes within which the log of a training shows what it is


@dataclass
class Log:
    """
    Attributes:
        tables: kind of line -> name of figure -> values in the order of updates, NaN where a line lacks the
            figure. Kinds are INNER, EPOCH, SAVED, and the subsets of validation.
        options: what fairseq was started with, if the log tells.
        parameters: of the model, if the log tells.
        made_with: version of this package, and of a checkout its commit, if the log tells.
        finished: the training came to its end, and did not begin again.
        cut: the last line has no end.
    """

    tables: Dict[str, Table] = field(default_factory=dict)
    options: Optional[Options] = None
    parameters: Optional[int] = None
    made_with: Optional[str] = None
    finished: bool = False
    cut: bool = False

    @property
    def training(self) -> Table:
        """Lines of training, of the last updates if there are such; empty if none."""
        return self.tables.get(INNER) or self.tables.get(EPOCH) or {}

    @property
    def subsets(self) -> List[str]:
        """Names of the subsets that were validated on."""
        return [kind for kind in self.tables if kind not in (INNER, EPOCH, SAVED)]


def is_training_log(path: Path) -> bool:
    """Whether the beginning of the file is that of a training's log."""
    try:
        with path.open("rb") as file:
            return _MARK.search(file.read(_HEAD)) is not None
    except OSError:
        return False


def made_with(text: Optional[str]) -> Optional[str]:
    """What a line of a log, or a checkpoint, tells of the version of this package, for a table."""
    found = _MADE_WITH.search(text or "")
    return ", commit ".join(part[:12] for part in found.groups() if part) if found else None


def read_logs(paths: Sequence[Path]) -> Log:
    """Logs of one run, in the order in which they were written, as one.

    Raises:
        InputError: a file cannot be read, or none is a log of fairseq-train.
    """
    reader = _Reader()
    for path in paths:
        try:
            reader.read(path.read_bytes())
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
    log = reader.log()
    if not log.tables and log.options is None:
        raise InputError(f"{paths[0]} is no log of fairseq-train: it has no line of training or validation")
    return log


class _Shape:
    """Lines that hold the same figures: one expression reads them far faster than taking each apart."""

    def __init__(self, kind: str, head: Tuple[str, ...], stats: str) -> None:
        names, pattern, position = [], [], 0
        for figure in _FIGURE.finditer(stats):
            names.append(figure[1])
            pattern += [re.escape(stats[position : figure.start(3)]), r"([-+.\w]+)"]
            position = figure.end(3)
        self.match = re.compile("".join(pattern) + re.escape(stats[position:])).fullmatch
        # JSON tells the subset in the names: valid_loss, valid_num_updates.
        prefix = next((name[: -len(UPDATES)] for name in names if name.endswith(UPDATES)), "")
        self.has_updates = prefix + UPDATES in names
        self.kind = prefix[:-1] or kind
        self.names = (*head, *(name[len(prefix) :] if name.startswith(prefix) else name for name in names))
        self.rows: List[Tuple[str, ...]] = []

    def table(self) -> Table:
        table = {name: _numbers(column) for name, column in zip(self.names, zip(*self.rows))}
        if "_done" in table:
            table["epoch"] = table["epoch"] - 1 + table.pop("_done") / np.maximum(table.pop("_batches"), 1)
        if "update" in table:  # so JSON names the epochs that are done, with their fraction
            table["epoch"] = table.pop("update")
        return table


class _Reader:
    def __init__(self) -> None:
        self._log = Log()
        self._shapes: List[_Shape] = []
        self._newest: Dict[str, List[_Shape]] = {}  # by the form of the line, the newest first

    def read(self, content: bytes) -> None:
        text = content.decode("utf-8", errors="replace")
        lines = re.split(r"[\r\n]+", _TERMINAL.sub("", text) if "\x1b" in text else text)
        self._log.cut = bool(lines.pop().strip())
        for line in lines:
            self._take(line.rstrip())

    def log(self) -> Log:
        tables: Dict[str, List[Table]] = {}
        for shape in self._shapes:
            tables.setdefault(shape.kind, []).append(shape.table())
        self._log.tables = {kind: _last_of_each_update(_stacked(parts)) for kind, parts in tables.items()}
        return self._log

    def _take(self, line: str) -> None:
        found = _JSON.search(line) if '{"' in line else None
        if found:
            return self._count("json", INNER, (), (), found[0])
        if "epoch" not in line:
            return self._take_fact(line)
        found = _PROGRESS.search(line) if "=" in line else None
        if found:
            head = ("epoch", "_done", "_batches")
            return self._count("progress", INNER, head, found.groups(), line[found.end() :])
        found = _END.search(line)
        if found:
            kind = found[2] or EPOCH
            return self._count(kind, kind, ("epoch",), (found[1],), line[found.end() :])
        return self._take_fact(line)

    def _count(self, form: str, kind: str, names: Tuple[str, ...], head: Tuple[str, ...], stats: str) -> None:
        shapes = self._newest.setdefault(form, [])
        for shape in shapes:
            row = shape.match(stats)
            if row:
                shape.rows.append(head + row.groups())
                return
        shape = _Shape(kind, names, stats)
        row = shape.match(stats)
        if row and shape.has_updates:
            shape.rows.append(head + row.groups())
            shapes.insert(0, shape)
            self._shapes.append(shape)

    def _take_fact(self, line: str) -> None:
        saved = _SAVED.search(line)
        if saved:
            self._count(SAVED, SAVED, (), (), f"epoch {saved[1]} | {UPDATES} {saved[2]} | score {saved[3]}")
        elif "done training in" in line:
            self._log.finished = True
        elif "begin training epoch" in line:
            self._log.finished = False
        elif _OPTIONS.search(line):
            options = printed_options(line)
            if not option(options, "path"):  # what is given a model is no training, in whatever file it logs
                self._log.options = options or self._log.options
        elif "model params" in line and not self._log.parameters:
            found = _PARAMETERS.search(line)
            self._log.parameters = int(found[1].replace(",", "")) if found else None
        elif "luna_fairseq " in line:
            self._log.made_with = made_with(line) or self._log.made_with


def _numbers(column: Sequence[str]) -> np.ndarray:
    try:
        return np.array(list(map(float, column)))
    except ValueError:
        return np.array([_number(value) for value in column])


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # None, null, or a word
        return float("nan")


def _stacked(tables: List[Table]) -> Table:
    """One table below the other; NaN where one lacks a figure."""
    names = {name: None for table in tables for name in table}
    sizes = [len(table[UPDATES]) for table in tables]
    return {
        name: np.concatenate([table.get(name, np.full(size, np.nan)) for table, size in zip(tables, sizes)])
        for name in names
    }


def _last_of_each_update(table: Table) -> Table:
    """Without the updates that were done again after a restart: the later ones count."""
    updates = table[UPDATES]
    later = np.minimum.accumulate(np.append(updates, np.inf)[::-1])[::-1][1:]
    keep = updates < later
    return {name: values[keep] for name, values in table.items()}
