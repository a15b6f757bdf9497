"""Pictures that commands draw with matplotlib, which only they need."""

import logging
from pathlib import Path
from typing import Any

from luna_fairseq.files.writing import check_writable, replacing
from luna_fairseq.requirements import import_package


def check_plot(path: Path, option: str) -> None:
    """Raise InputError, before any work is done, for a picture that ``option`` wants where it cannot be
    written, and MissingRequirementError where matplotlib is not installed."""
    check_writable(path, option)
    # Importing fairseq may turn every library's debugging messages on.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    import_package("matplotlib", option)


def new_figure(**options: Any) -> Any:
    """An empty matplotlib Figure whose parts do not overlap."""
    # Not through pyplot, which would look for a display.
    from matplotlib.figure import Figure

    return Figure(layout="constrained", **options)


def save_png(figure: Any, path: Path) -> None:
    """Write a figure to ``path``; it appears whole or not at all."""
    with replacing(path) as temporary:
        figure.savefig(str(temporary), format="png", dpi=120)
