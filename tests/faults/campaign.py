"""A campaign of faults: kills, damaged files, bad input, evil pickles, full disks, and what else happens.

    python tests/faults/campaign.py --seed 1 [--part 0.1] [--only KIND ...] [--write docs/results/faults.md]

Prints a table of counts; its status is 0 only if nothing failed. --write puts it in the place of a page's.
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


def main() -> None:
    args = parse()
    warmed.import_everything()
    from fault_world import World
    from tallies import Tally

    # Not in a context: the forked processes must not remove it when they end.
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=args.folder))
    tally = Tally()
    try:
        world = World(folder / "world")
        world.build()
        for kind in args.only or KINDS:
            print(f"== {kind}", flush=True)
            functions()[kind](world, tally, Share(args.part), args.seed)
    finally:
        shutil.rmtree(str(folder), ignore_errors=True)
    print(tally.markdown(), end="")
    if args.write:
        command = shlex.join(["python", "tests/faults/campaign.py", *sys.argv[1:]])
        head = args.write.read_text(encoding="utf-8") if args.write.exists() else ""
        page = f"{head.partition('| fault ')[0]}{tally.markdown()}\n`{command}`\n"
        args.write.write_text(page, encoding="utf-8")
    sys.stdout.flush()
    # Libraries complain of what the interpreter's end leaves.
    os._exit(1 if tally.failed else 0)


class Share:
    """How often to do what the whole campaign does a number of times; what is left over goes to the next.

    Args:
        part: of the whole, 1 for all.
    """

    def __init__(self, part: float) -> None:
        self.part, self.due = part, 0.5

    def __call__(self, number: int) -> int:
        self.due += number * self.part
        now = int(self.due)
        self.due -= now
        return now


def functions() -> Dict[str, Callable[..., Any]]:
    import bad_inputs
    import flips
    import hostile
    import kills
    import surroundings

    modules = (kills, flips, bad_inputs, hostile, surroundings)
    return {name: getattr(module, name) for name in KINDS for module in modules if hasattr(module, name)}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--seed", type=int, default=1, metavar="N", help="of all that is random (default: 1)")
    add("--part", type=float, default=1.0, metavar="X", help="part of the repetitions (default: all)")
    add("--only", nargs="+", choices=KINDS, metavar="KIND", help=f"of {', '.join(KINDS)}")

    add("--folder", metavar="DIR", help="where to work (default: the system's folder for temporary files)")
    add("--write", type=Path, metavar="FILE", help="put the table and this command into this page")
    return parser.parse_args()


if __name__ == "__main__":
    main()
