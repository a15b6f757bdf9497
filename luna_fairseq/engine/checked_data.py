"""Data that is read as it was prepared."""

from pathlib import Path
from typing import Any, Callable

import torch

from luna_fairseq.engine.mend import Mend
from luna_fairseq.files.checksums import check_files

CHECKED_DATA = Mend(
    "checked-data",
    what="checks data that luna-prepare-* made by its checksums (checksums.sha256) when it is read",
    why="it trains on whatever tokens a damaged file holds. (Data of fairseq-preprocess has no checksums)",
)


@CHECKED_DATA.around("fairseq.data.indexed_dataset:make_dataset")
def _as_it_was_prepared(make_dataset: Callable[..., Any], path: str, *args: Any, **kwargs: Any) -> Any:
    _check(path)
    return make_dataset(path, *args, **kwargs)


@CHECKED_DATA.around("fairseq.data.dictionary:Dictionary.add_from_file")
def _with_its_dictionary(add_from_file: Callable[..., Any], self: Any, f: Any) -> Any:
    if isinstance(f, str):
        _check(f)
    return add_from_file(self, f)


def _check(path: str) -> None:
    """In one process of a run: when it ends, all do."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_rank()):
        check_files(Path(path))
