"""Check prepared data when it is read."""

from pathlib import Path
from typing import Any

from luna_fairseq.engine.mend import RIGHT, Function, Mend
from luna_fairseq.files.checksums import check_files

CHECKED_DATA = Mend(
    "checked-data",
    RIGHT,
    "A training or a score silently uses wrong tokens after a file of luna-prepare-* data was damaged: its "
    "folder has checksums (checksums.sha256), which fairseq does not read.",
)


@CHECKED_DATA.around("fairseq.data.indexed_dataset:make_dataset")
def _as_it_was_prepared(make_dataset: Function, path: str, *args: Any, **kwargs: Any) -> Any:
    from fairseq.distributed.utils import get_global_rank

    if get_global_rank() == 0:  # when one process ends with an error, all do
        check_files(Path(path))
    return make_dataset(path, *args, **kwargs)
