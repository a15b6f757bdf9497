"""``luna-report``: one HTML file that compares training runs: results, options that differ, translations side
by side, and BLEU by the length of the source.

RUN is the folder or the log of a run of fairseq-train or fairseq-hydra-train, or a folder of several, such as
luna-lra-seeds and luna-finetune fill; NAME=RUN gives it a name. Logs of every --log-format will do, and a run
that is not finished gives a report of what there is. Translations are what luna-evaluate or fairseq-generate
left in the run's folder, or in the folders of --results. The file needs nothing beside it: it opens from
disk, and asks the network for nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from luna_fairseq.commands.arguments import CommandParser, positive
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.progress import progress
from luna_fairseq.report.options import differences
from luna_fairseq.report.page import Page, page
from luna_fairseq.report.runs import Run, find_runs, summary
from luna_fairseq.report.translations import Translations, by_length, read_translations, samples

PROGRAM = "luna-report"
STYLES = ("page.css", "training.css")
SCRIPTS = ("page.js", "samples.js", "training.js")
RESULT_FOLDERS = ("results", "evaluation", "test")
MOST_RUNS = 24


def build_parser() -> CommandParser:
    """Build the parser of the command line."""
    parser = CommandParser(PROGRAM, __doc__)
    parser.path("runs", "folder or log of a run, or NAME=RUN", "RUN", nargs="+")
    parser.path("--out", "(default: %(default)s)", default=Path("report.html"))
    parser.path("--results", "each run's folder of translations, in the order of the runs", "DIR", nargs="+")
    parser.count("--samples", 200, "sentences to show")
    heading = "heading of the page (default: %(default)s)"
    parser.add_argument("--title", default="Training runs", help=heading)
    parser.add_argument(
        "--watch",
        type=positive,
        nargs="?",
        const=30,
        metavar="SECONDS",
        help="rewrite the report as the logs grow, until all runs are finished (default: every %(const)s)",
    )
    return parser


def _report(args: argparse.Namespace) -> None:
    if not args.watch:
        _write(args, find_runs(args.runs))
        return
    seen: Any = None
    try:
        while True:
            runs = find_runs(args.runs)
            now = [(str(file), file.stat().st_size) for run in runs for file in run.files]
            if now != seen:
                seen = now
                _write(args, runs)
            if all(run.log.finished for run in runs):
                return
            time.sleep(args.watch)
    except KeyboardInterrupt:
        print()


def _write(args: argparse.Namespace, runs: List[Run]) -> None:
    report = report_page(runs, args.title, args.results, args.samples, args.watch or 0)
    report.write(args.out)
    for run in runs:
        for note in run.notes:
            print(f"{run.name}: {note}")
    print(f"wrote {args.out} ({report.size}, {len(runs)} runs)", flush=True)


def report_page(
    runs: List[Run],
    title: str = "Training runs",
    results: Optional[Sequence[Path]] = None,
    number_of_samples: int = 200,
    watch: int = 0,
) -> Page:
    """Return the page that compares runs.

    Args:
        runs: runs as ``find_runs`` returns them, at most 24
        title: heading of the page
        results: folder of translations of each run (default: found beside the run)
        number_of_samples: number of sentences to show
        watch: number of seconds after which the page reloads itself (default: 0, never)

    Raises:
        InputError: there are more than 24 runs, or another number of runs than of ``results``
    """
    if len(runs) > MOST_RUNS:
        raise InputError(f"{len(runs)} runs are too many to tell apart: name {MOST_RUNS} at most")
    if results and len(results) != len(runs):
        raise InputError(
            f"--results names {len(results)} folders for {len(runs)} runs: give one for each run"
        )
    given: Sequence[Optional[Path]] = results or [None] * len(runs)
    shown = zip(progress(runs, "translations", "runs"), given)
    translated = [_translations(run, folder) for run, folder in shown]
    data = {
        "title": title,
        "watch": watch,
        "options": differences([run.options for run in runs]),
        "samples": samples(translated, number_of_samples),
        "lengths": by_length(translated),
        "runs": [_run_data(run, found) for run, found in zip(runs, translated)],
        "seeds": _seeds(runs),
    }
    return page(title, data, STYLES, SCRIPTS)


def _run_data(run: Run, found: Translations) -> Dict[str, Any]:
    scores = {f"Test {score['name']}": f"{score['value']:.2f}" for score in found.scores}
    return {
        "name": run.name,
        "path": str(run.folder),
        "summary": {**summary(run), **scores},
        "signatures": [f"{score['name']}: {score['signature']}" for score in found.scores],
        "notes": [*run.notes, *([found.note] if found.note else [])],
    }


def _translations(run: Run, given: Optional[Path]) -> Translations:
    if given is not None and not given.is_dir():
        raise InputError(f"--results {given} is no folder: give what luna-evaluate wrote to")
    # What lies above a run's own folder may be another run's.
    own = run.folder.parent if run.folder.name == "checkpoints" else run.folder
    beside = [run.folder, own, *(own / name for name in RESULT_FOLDERS)]
    for folder in [given] if given is not None else beside:
        found = read_translations(folder)
        if found.sentences or found.scores:
            return found
    return Translations()


def _seeds(runs: List[Run]) -> List[Dict[str, Any]]:
    """Return mean and sample standard deviation of the test accuracy over the seeds of luna-lra-seeds."""
    found: Dict[Any, List[float]] = {}
    for run in runs:
        if run.result is not None:
            key = (str(run.result.get("title", "")), str(run.result.get("model", "")))
            found.setdefault(key, []).append(float(run.result["accuracy"]))
    return [
        {
            "task": task,
            "model": model,
            "seeds": len(values),
            "mean": round(statistics.mean(values), 2),
            "deviation": round(statistics.stdev(values), 2) if len(values) > 1 else None,
        }
        for (task, model), values in found.items()
    ]


main = console_script(PROGRAM, build_parser, _report, place="out")


if __name__ == "__main__":
    sys.exit(main())
