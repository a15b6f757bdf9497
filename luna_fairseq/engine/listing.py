"""Command ``luna-engine``: print the versions in use, and list the changes to fairseq with their purpose."""

import argparse
import importlib
import platform
import sys
import textwrap
from pathlib import Path
from typing import Iterator, Optional, Sequence

from luna_fairseq.command_errors import exit_if_unread
from luna_fairseq.engine.patch import APPLIED, IMPOSSIBLE, LEFT_OUT, NOT_NEEDED, Patch
from luna_fairseq.engine.table import SWITCH, TABLE
from luna_fairseq.engine.versions import installed_version


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command ``luna-engine``."""
    parser = argparse.ArgumentParser(
        prog="luna-engine",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Print the versions of Python, fairseq, torch and numpy in use, and what luna_fairseq\n"
        f"changes in fairseq and why. {SWITCH}=NAME,NAME in the environment\n"
        "leaves changes out of every command.",
        epilog=f"example:\n  luna-engine\n  {SWITCH}=stopping luna-engine",
    )
    parser.parse_args(argv)
    with exit_if_unread():
        print("\n".join(format_report()))
    return 0


def format_report() -> Iterator[str]:
    """Yield the lines printed by ``luna-engine``: versions, and fairseq patches grouped by state."""
    yield "versions"
    yield f"  {'Python':<13} {platform.python_version():<12} {sys.executable}"
    for package in ("luna_fairseq", "fairseq", "torch", "numpy", "omegaconf", "hydra"):
        folder = Path(importlib.import_module(package).__file__ or "").parent
        yield f"  {package:<13} {installed_version(package):<12} {folder}"
    for state in (APPLIED, NOT_NEEDED, LEFT_OUT, IMPOSSIBLE):
        patches = [patch for patch in TABLE if patch.state == state]
        yield ""
        yield f"{state}: {len(patches)}" + (f" (by {SWITCH})" if state == LEFT_OUT else "")
        for patch in patches:
            yield from _format_patch(patch)


def _format_patch(patch: Patch) -> Iterator[str]:
    """Yield lines that describe a fairseq patch: name, purpose, versions and replaced functions."""
    targets = ", ".join(target.replace(":", ".") for target, _ in patch.replacements if target)
    yield f"  {patch.name}"
    for title, text in (
        ("class", patch.importance),
        ("prevents", patch.prevents),
        ("for", patch.versions),
        ("replaces", targets or "no function (acts once, when luna_fairseq is imported)"),
    ):
        yield textwrap.fill(
            text,
            110,
            initial_indent=f"    {title:<9} ",
            subsequent_indent=" " * 14,
            break_on_hyphens=False,
        )


if __name__ == "__main__":
    raise SystemExit(main())
