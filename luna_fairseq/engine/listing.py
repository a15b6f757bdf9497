"""``luna-engine``: what is underneath, and what of fairseq is changed here, why, and what is not."""

import argparse
import textwrap
from typing import Iterator, Optional, Sequence

from luna_fairseq.engine.mend import GONE, LEFT_OUT, MENDED, NOT_NEEDED, Mend
from luna_fairseq.engine.table import SWITCH, TABLE
from luna_fairseq.engine.underneath import what_is_underneath
from luna_fairseq.errors import until_nobody_reads

_WIDTH = 110


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Console entry point; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="luna-engine",
        description="Say which Python, fairseq, torch and numpy are underneath, and what luna_fairseq "
        f"changes in fairseq. {SWITCH}=NAME,NAME in the environment leaves changes out, of every command.",
    )
    parser.parse_args(argv)
    with until_nobody_reads():
        print("\n".join(lines()))
    return 0


def lines() -> Iterator[str]:
    """The listing, line by line."""
    yield "underneath"
    for name, version, place in what_is_underneath():
        yield f"  {name:<13} {version:<12} {place}"
    for state in (MENDED, NOT_NEEDED, LEFT_OUT, GONE):
        mends = [mend for mend in TABLE if mend.state == state]
        yield ""
        yield f"{state}: {len(mends)}" + (f" (by {SWITCH})" if state == LEFT_OUT else "")
        for mend in mends:
            yield from _entry(mend)


def _entry(mend: Mend) -> Iterator[str]:
    yield f"  {mend.name}"
    changed = ", ".join(target.replace(":", ".") for target, _ in mend.changes if target)
    for word, text in (
        ("class", mend.importance),
        ("fairseq", mend.what),
        ("because", mend.why),
        ("for", mend.versions),
        ("around", changed or "nothing: it is told once"),
    ):
        yield textwrap.fill(
            text, _WIDTH, initial_indent=f"    {word:<8} ", subsequent_indent=" " * 13, break_on_hyphens=False
        )


if __name__ == "__main__":
    raise SystemExit(main())
