"""fairseq patch ``checked-data``: verify the checksums of prepared data at loading time."""

from pathlib import Path
from typing import Any

from luna_fairseq.engine.patch import RESULTS, Function, Patch
from luna_fairseq.files.checksums import check_files

CHECKED_DATA = Patch(
    "checked-data",
    RESULTS,
    "Training and evaluation silently use wrong tokens if a file that luna-prepare-* wrote is damaged. The "
    "folder has checksums (checksums.sha256), but fairseq does not read them.",
)


@CHECKED_DATA.replaces("fairseq.data.indexed_dataset:make_dataset")
def _check_and_make_dataset(make_dataset: Function, path: str, *args: Any, **kwargs: Any) -> Any:
    """Replacement for fairseq's ``make_dataset`` that first verifies the checksums of the dataset's files."""
    from fairseq.distributed.utils import get_global_rank

    if get_global_rank() == 0:  # an error in one process terminates all processes
        check_files(Path(path))
    return make_dataset(path, *args, **kwargs)
