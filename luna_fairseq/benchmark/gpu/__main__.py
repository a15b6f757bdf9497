"""The command line."""

import argparse
import os
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Union

from luna_fairseq.benchmark.gpu import sections
from luna_fairseq.benchmark.gpu.page import Found, write
from luna_fairseq.benchmark.gpu.supervise import OUT_OF_TIME, Outcome, Section, run_section
from luna_fairseq.benchmark.gpu.timing import CHECK, Timing
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import check_writable

PROGRAM = "python -m luna_fairseq.benchmark.gpu"
# A page is written anew not more often than so [s], but after every section.
SECONDS_BETWEEN_WRITES = 2.0
# Nothing is begun with less time than this [s] left: a process takes some of it to import torch.
LEAST = 5.0


class Campaign:
    """All sections of a run, and what is known so far.

    Args:
        folder: for ``gpu.json`` and ``gpu.md``
        minutes: after which it ends
        about: for the page's head
    """

    def __init__(self, folder: Path, minutes: float, about: Dict[str, Any]):
        self.folder = folder
        self.until = time.monotonic() + 60 * minutes
        self.about = about
        self.found: List[Found] = []
        self.written = 0.0
        self.scratch = tempfile.TemporaryDirectory()

    def run(self, section: Section) -> Outcome:
        """Do a section, or note that there was no time for it."""
        print(f"{section.title}: {len(section.jobs)} jobs", flush=True)
        self.found.append(Found(section, Outcome()))
        if self.until - time.monotonic() < LEAST:
            outcome = Outcome(left_out=[job.key for job in section.jobs])
        else:
            outcome = run_section(section, self.until, Path(self.scratch.name), self.changed)
        self.changed(outcome, at_once=True)
        for key, why in outcome.failed.items():
            print(f"  FAILED {key}: {why}", flush=True)
        return outcome

    def changed(self, outcome: Outcome, at_once: bool = False) -> None:
        """Write what is known."""
        self.found[-1] = self.found[-1]._replace(outcome=outcome)
        if at_once or time.monotonic() - self.written > SECONDS_BETWEEN_WRITES:
            write(self.folder, self.about, self.found)
            self.written = time.monotonic()

    def time(self, timing: Timing) -> None:
        """Check the rows of a task one by one, then time those that are right."""
        try:
            checks = timing.checks()
        except ImportError as error:
            self.found.append(Found(Section(timing.name, timing.title, timing.command(), []), Outcome()))
            self.changed(Outcome(failed={"all": f"not measured: {error}"}), at_once=True)
            return
        outcome = self.run(checks)
        wrong = {key for key, why in outcome.failed.items() if why != OUT_OF_TIME}
        self.run(timing.times([key[len(CHECK) :] for key in wrong]))


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Tries and times the GPU kernels; writes gpu.json and gpu.md as rows come."
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("gpu"), metavar="DIR", help="folder of both files (default: gpu)")
    add("--minutes", type=float, default=9.0, metavar="N", help="after which it ends (default: 9)")
    add(
        "--device",
        choices=["cuda", "cpu"],
        default="cuda",
        help="cpu: small sizes in Triton's interpreter (default: cuda)",
    )
    add(
        "--only",
        nargs="+",
        default=[],
        metavar="SECTION",
        help="no others, as parity causal train lra decode",
    )
    add("--full", action="store_true", help="all sizes on a CPU, for --only resources")
    add("--plant-wrong-kernel", action="store_true", help="leave a step of the kernels out: must be reported")
    return parser


@contextmanager
def interpreted() -> Iterator[None]:
    """Have Triton interpret its kernels in the processes that are started in here."""
    before = dict(os.environ)
    # The interpreter's products are small: a pool of threads for each would take the time.
    os.environ.update(TRITON_INTERPRET="1", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run(args: argparse.Namespace) -> int:
    """Do everything; the exit status is 1 where a kernel is wrong or a job failed."""
    with interpreted() if args.device == "cpu" else nullcontext():
        return measure(args)


def measure(args: argparse.Namespace) -> int:
    """What :func:`run` does, in the environment that is as it has to be."""
    import torch

    if not 0 < args.minutes < float("inf"):
        raise InputError(f"--minutes {args.minutes:g} leaves no time: give more than 0")
    small = args.device == "cpu" and not args.full
    # Asks the driver, and leaves no context behind.
    if args.device != "cpu" and torch.cuda.device_count() == 0:
        raise InputError("torch sees no GPU; --device cpu tries the same at small sizes")
    with suppress(OSError):  # the next line says what is wrong
        args.out.mkdir(parents=True, exist_ok=True)
    check_writable(args.out / "gpu.json", "--out")
    about = {"begun": datetime.now(timezone.utc).isoformat(timespec="seconds"), **version()}
    campaign = Campaign(args.out, args.minutes, about)
    rows = campaign.run(sections.machine(args.device, small)).rows
    if not rows:
        raise InputError(f"the GPU does nothing at all: {campaign.found[-1].outcome.failed}")
    kernels = sections.kernels(args.device, rows[0], small, args.plant_wrong_kernel)
    timings = sections.timings(args.device, rows[0], small)
    check_names(args.only, [*(section.name for section in kernels), *(timing.name for timing in timings)])
    # The most important first: parity, the attention and the training step, then what the compiler says.
    parts: List[Union[Section, Timing]] = [*kernels[:1], *timings[:2], *kernels[1:], *timings[2:]]
    for part in parts:
        if args.only and part.name not in args.only:
            continue
        if isinstance(part, Timing):
            campaign.time(part)
        else:
            campaign.run(part)
    print(f"written: {args.out / 'gpu.md'}, {args.out / 'gpu.json'}")
    return 1 if troubled(campaign.found) else 0


def check_names(only: Sequence[str], known: Sequence[str]) -> None:
    """Raise InputError for a section that there is not."""
    for name in only:
        if name not in known:
            raise InputError(f"--only {name}: there is no such section; there are {', '.join(known)}")


def version() -> Dict[str, Any]:
    """Of this package."""
    import luna_fairseq
    from luna_fairseq.engine.provenance import commit

    checkout = Path(luna_fairseq.__file__).resolve().parents[1]
    return {"luna_fairseq": luna_fairseq.__version__, "commit": commit(checkout / ".git")}


def troubled(found: Sequence[Found]) -> bool:
    """Whether something was wrong or failed; what was cut off for want of time is neither."""
    return any(
        [why for why in outcome.failed.values() if why != OUT_OF_TIME]
        or [row for row in outcome.rows if row.get("equal") is False]
        for _, outcome in found
    )


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Console entry point: 0, or 1 where something is wrong, as the page or one line on stderr says."""
    args = build_parser().parse_args(argv)
    try:
        return run(args)
    except InputError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
