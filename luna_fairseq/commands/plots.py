"""Helpers that create and save plots with matplotlib, an optional requirement."""

import logging
from pathlib import Path
from typing import Any

from luna_fairseq.files.writing import check_writable, replacing
from luna_fairseq.requirements import import_package


def check_plot(path: Path, option: str) -> None:
    """Raise InputError if a plot cannot be drawn or written. Call this before a long computation.

    Errors name ``option``, the command-line option that asks for the plot.
    """
    check_writable(path, option)
    # Importing fairseq may enable the debugging messages of every library.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    import_package("matplotlib", option)


def new_figure(**options: Any) -> Any:
    """Create an empty matplotlib ``Figure`` with constrained layout, which keeps labels from overlapping."""
    # matplotlib.pyplot would need a display.
    from matplotlib.figure import Figure

    return Figure(layout="constrained", **options)


def save_png(figure: Any, path: Path) -> None:
    """Write a figure as a PNG file. An existing file is replaced only once the new file is complete."""
    with replacing(path) as temporary:
        figure.savefig(str(temporary), format="png", dpi=120)
