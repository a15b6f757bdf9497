"""Campaign of faults: disturb the commands on purpose, and count how they end.

    python tests/faults/campaign.py --seed 1 [--part 0.1] [--only KIND ...] [--write docs/results/faults.md]

The faults are kills, damaged files, bad input, malicious pickles, full disks and others. The campaign prints
a table of counts. Its exit status is 0 only if no command failed. ``--write`` replaces the last section of a
page by the table.
"""

import argparse
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict

import warmed

KINDS = (
    *("kills", "flips", "bad_inputs", "pickles", "losses"),
    *("full_disks", "read_only", "vanishing", "two_at_once"),
)


# The heading of the page's section that --write replaces.
SECTION = "## Counts"


def main() -> None:
    """Run the campaign, print the table, and exit."""
    args = build_parser().parse_args()
    warmed.import_everything()
    from fault_world import World
    from tallies import Tally

    # No context manager: the forked processes would remove the folder when they end.
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=args.folder))
    tally = Tally()
    try:
        world = World(folder / "world")
        world.build()
        for kind in args.only or KINDS:
            print(f"== {kind}", flush=True)
            find_functions()[kind](world, tally, Share(args.part), args.seed)
    finally:
        shutil.rmtree(str(folder), ignore_errors=True)
    print(tally.by_fault(), end="")
    if args.write:
        command = shlex.join(["python", "tests/faults/campaign.py", *sys.argv[1:]])
        page = args.write.read_text(encoding="utf-8") if args.write.exists() else ""
        args.write.write_text(page.partition(SECTION)[0] + section(tally, command), encoding="utf-8")
    sys.stdout.flush()
    # Libraries print errors when the interpreter ends.
    os._exit(1 if tally.failed else 0)


def section(tally: Any, command: str) -> str:
    """Return the section of the results page: the table, and the command line that produced it."""
    return f"{SECTION}\n\n{tally.by_fault()}\n`{command}`\n"


class Share:
    """Callable that scales a number of repetitions to a part of the campaign.

    Fractions are carried over to the next call, so that the total is right.

    Args:
        part: share of the repetitions, from 0 to 1 (the whole campaign).
    """

    def __init__(self, part: float) -> None:
        self.part, self.due = part, 0.5

    def __call__(self, number: int) -> int:
        """Return how many of ``number`` repetitions to do."""
        self.due += number * self.part
        now = int(self.due)
        self.due -= now
        return now


def find_functions() -> Dict[str, Callable[..., Any]]:
    """Return the function that runs the campaign for each kind of fault, by name of the kind."""
    import bad_inputs
    import flips
    import hostile
    import kills
    import surroundings

    modules = (kills, flips, bad_inputs, hostile, surroundings)
    return {name: getattr(module, name) for name in KINDS for module in modules if hasattr(module, name)}


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--seed", type=int, default=1, metavar="N", help="seed of all random choices (default: 1)")
    add(
        "--part",
        type=float,
        default=1.0,
        metavar="X",
        help="part of the repetitions to do (default: 1.0, all)",
    )
    add(
        "--only",
        nargs="+",
        choices=KINDS,
        metavar="KIND",
        help=f"kinds of faults (default: all): {', '.join(KINDS)}",
    )
    add("--folder", metavar="DIR", help="folder to work in (default: the system's temporary folder)")
    add("--write", type=Path, metavar="FILE", help="page whose last section the table replaces")
    return parser


if __name__ == "__main__":
    main()
