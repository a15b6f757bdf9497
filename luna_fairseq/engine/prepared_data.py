"""Compare prepared data with its checksums when it is loaded."""

from pathlib import Path
from typing import Any

from luna_fairseq.engine.patch import RESULTS, Function, Patch
from luna_fairseq.files.checksums import check_files

CHECKED_DATA = Patch(
    "checked-data",
    RESULTS,
    "A training or a score silently uses wrong tokens after a file of luna-prepare-* data was damaged: its "
    "folder has checksums (checksums.sha256), which fairseq does not read.",
)


@CHECKED_DATA.replaces("fairseq.data.indexed_dataset:make_dataset")
def _check_and_make_dataset(make_dataset: Function, path: str, *args: Any, **kwargs: Any) -> Any:
    """Check the files of ``path`` and load them.

    Raises:
        InputError: a file differs from its checksum
    """
    from fairseq.distributed.utils import get_global_rank

    if get_global_rank() == 0:  # an error of one process ends all of them
        check_files(Path(path))
    return make_dataset(path, *args, **kwargs)
