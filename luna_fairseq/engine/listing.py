"""``luna-engine``: print the versions in use, and what luna_fairseq changes in fairseq and why."""

import argparse
import importlib
import platform
import sys
import textwrap
from pathlib import Path
from typing import Iterator, Optional, Sequence

from luna_fairseq.engine.mend import GONE, LEFT_OUT, MENDED, NOT_NEEDED
from luna_fairseq.engine.table import SWITCH, TABLE
from luna_fairseq.engine.underneath import version
from luna_fairseq.errors import until_nobody_reads


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Console entry point; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="luna-engine",
        description="Print the versions of Python, fairseq, torch and numpy in use, and what luna_fairseq "
        f"changes in fairseq and why. {SWITCH}=NAME,NAME in the environment leaves changes out of every "
        "command.",
    )
    parser.parse_args(argv)
    with until_nobody_reads():
        print("\n".join(lines()))
    return 0


def lines() -> Iterator[str]:
    """Yield the lines of the listing."""
    yield "versions"
    yield f"  {'Python':<13} {platform.python_version():<12} {sys.executable}"
    for package in ("luna_fairseq", "fairseq", "torch", "numpy", "omegaconf", "hydra"):
        place = Path(importlib.import_module(package).__file__ or "").parent
        yield f"  {package:<13} {version(package):<12} {place}"
    for state in (MENDED, NOT_NEEDED, LEFT_OUT, GONE):
        mends = [mend for mend in TABLE if mend.state == state]
        yield ""
        yield f"{state}: {len(mends)}" + (f" (by {SWITCH})" if state == LEFT_OUT else "")
        for mend in mends:
            targets = ", ".join(target.replace(":", ".") for target, _ in mend.changes if target)
            yield f"  {mend.name}"
            for word, text in (
                ("class", mend.importance),
                ("prevents", mend.prevents),
                ("for", mend.versions),
                ("replaces", targets or "no function: it acts once, when luna_fairseq is imported"),
            ):
                begin, rest = f"    {word:<9} ", " " * 14
                yield textwrap.fill(text, 110, initial_indent=begin, subsequent_indent=rest,
                                    break_on_hyphens=False)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
