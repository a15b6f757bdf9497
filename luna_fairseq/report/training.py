"""Command ``luna-report``, which writes an HTML page that compares training runs.

Compare training runs on one HTML page: their results, the options that differ, translations side by side,
and BLEU by source length.

RUN is the folder or the log file of a fairseq-train or fairseq-hydra-train run. It may also be a folder that
contains several runs, such as the output folder of luna-lra-seeds or luna-finetune. Write NAME=RUN to choose
the name that the page shows. Logs in every --log-format can be read, also while the run is still training.
Translations are read from the output of luna-evaluate or fairseq-generate in the folder of the run, or in the
folders given with --results. The page opens from disk and makes no network requests.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from luna_fairseq.commands.arguments import CommandParser, positive
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.scores import describe_settings
from luna_fairseq.files.writing import check_separate
from luna_fairseq.lra.results import Result, describe_differences
from luna_fairseq.progress import progress
from luna_fairseq.report.options import differing_options, get_option
from luna_fairseq.report.page import Page, build_page
from luna_fairseq.report.runs import Run, find_runs, summarize_run
from luna_fairseq.report.translations import Translations, bleu_by_length, choose_samples, read_translations

PROGRAM = "luna-report"
STYLES = ("page.css", "training.css")
SCRIPTS = ("page.js", "samples.js", "training.js")
# Subfolders of a run that are searched for translations.
RESULT_FOLDERS = ("results", "evaluation", "test")
MAX_RUNS = 60


def build_parser() -> CommandParser:
    """Build the command-line parser of luna-report."""
    example = "example: luna-report checkpoints/luna checkpoints/transformer"
    parser = CommandParser(PROGRAM, __doc__, epilog=example)
    parser.path("runs", "folder or log file of a run, or NAME=RUN", "RUN", nargs="+")
    parser.path("--out", "file to write (default: %(default)s)", default=Path("report.html"))
    parser.path(
        "--results",
        "folders of the translations, one for each run, in the order of the runs (default: the folder of the "
        "run or one of its subfolders)",
        "DIR",
        nargs="+",
    )
    parser.count("--samples", 200, "number of sentences to show")
    parser.add_argument("--title", default="Training runs", help="heading of the page (default: %(default)s)")
    parser.add_argument(
        "--watch",
        type=positive,
        nargs="?",
        const=30,
        metavar="SECONDS",
        help="check the logs every SECONDS seconds (%(const)s if no number is given) and rewrite the page "
        "when they have grown, until all runs are finished (default: write the page once)",
    )
    return parser


def _report(args: argparse.Namespace) -> None:
    """Write the HTML page once or, with ``--watch``, whenever a log has grown.

    Watching ends when all runs are finished, or on Ctrl-C.
    """
    if not args.watch:
        _write_page(args, find_runs(args.runs))
        return
    previous_sizes: Optional[List[Tuple[str, int]]] = None
    try:
        while True:
            runs = find_runs(args.runs)
            sizes = [(str(file), file.stat().st_size) for run in runs for file in run.files]
            if sizes != previous_sizes:
                previous_sizes = sizes
                _write_page(args, runs)
            if all(run.log.finished for run in runs):
                return
            time.sleep(args.watch)
    except KeyboardInterrupt:
        print()


def _write_page(args: argparse.Namespace, runs: List[Run]) -> None:
    """Write the HTML page that compares the runs, and print the notes about missing information."""
    check_separate(args.out, "--out", [file for run in runs for file in run.files])
    page = report_page(runs, args.title, args.results, args.samples, args.watch or 0)
    page.write(args.out)
    for run in runs:
        for note in run.notes:
            print(f"{run.name}: {note}")
    print(f"wrote {args.out} ({page.size}, {len(runs)} runs)", flush=True)


def report_page(
    runs: List[Run],
    title: str = "Training runs",
    results: Optional[Sequence[Path]] = None,
    number_of_samples: int = 200,
    watch: int = 0,
) -> Page:
    """Build an HTML page that compares training runs.

    Args:
        runs: runs from :func:`~luna_fairseq.report.runs.find_runs`, at most 60.
        title: heading of the page.
        results: one folder with translations per run (default: the run folder and its subfolders are
            searched).
        number_of_samples: maximum number of translated sentences to show.
        watch: number of seconds after which an open page reloads, or 0 to disable reloading.

    Raises:
        InputError: There are too many runs, or ``results`` does not match the runs.

    Example:
        >>> from luna_fairseq.report.runs import find_runs
        >>> report_page(find_runs([Path("checkpoints/luna")])).write(Path("report.html"))  # doctest: +SKIP
    """
    if len(runs) > MAX_RUNS:
        raise InputError(f"Expected at most {MAX_RUNS} runs, got {len(runs)}. Name fewer runs.")
    if results and len(results) != len(runs):
        raise InputError(
            f"--results names {len(results)} folders for {len(runs)} runs. Give one folder for each run."
        )
    folders: Sequence[Optional[Path]] = results or [None] * len(runs)
    sharing = Counter(folder for folder, _ in {(run.folder.resolve(), tuple(run.files)) for run in runs})
    translations = [
        _find_translations(run, folder, is_shared=sharing[run.folder.resolve()] > 1)
        for run, folder in zip(progress(runs, "translations", "runs"), folders)
    ]
    seeds = _accuracy_over_seeds(runs)  # adds notes to the runs
    data = {
        "title": title,
        "watch": watch,
        "options": differing_options([run.options for run in runs]),
        "samples": choose_samples(translations, number_of_samples),
        "lengths": bleu_by_length(translations),
        "runs": [_run_data(run, translated) for run, translated in zip(runs, translations)],
        "seeds": seeds,
    }
    return build_page(title, data, STYLES, SCRIPTS)


def _run_data(run: Run, translations: Translations) -> Dict[str, Any]:
    """Convert a run and its translations to JSON-serializable data for the HTML page."""
    scores = {f"Test {score['name']}": f"{score['value']:.2f}" for score in translations.scores}
    return {
        "name": run.name,
        "path": str(run.folder),
        "summary": {**summarize_run(run), **scores},
        "signatures": [_describe_score(score) for score in translations.scores],
        "notes": [*run.notes, *([translations.note] if translations.note else [])],
    }


def _describe_score(score: Dict[str, Any]) -> str:
    """Return a score's name and signature and, if known, its checkpoint and search settings."""
    known = [Path(score["checkpoint"]).name] if "checkpoint" in score else []
    known += ["moving average"] if score.get("ema") else []
    known += [settings] if (settings := describe_settings(score)) else []
    return f"{score['name']}: {score['signature']}" + (f" ({', '.join(known)})" if known else "")


def _find_translations(run: Run, results: Optional[Path], is_shared: bool) -> Translations:
    """Read a run's translations from the folder ``results``. The result is empty if the folder has none.

    If ``results`` is None, the folder of the run and its subfolders are searched. Translations found in a
    folder shared by several runs (``is_shared``) are not read, because they may be those of another run.
    """
    language = get_option(run.options, "target_lang")
    if results is not None:
        if not results.is_dir():
            raise InputError(f"--results {results} is not a folder. Give a folder that luna-evaluate wrote.")
        return read_translations(results, language)
    # The parent folder is searched only if it belongs to the same run.
    main_folder = run.folder.parent if run.folder.name == "checkpoints" else run.folder
    for folder in [run.folder, main_folder, *(main_folder / name for name in RESULT_FOLDERS)]:
        translations = read_translations(folder, language)
        if translations.sentences or translations.scores:
            note = f"{folder} has translations, but several runs share this folder. Give --results."
            return Translations(note=note) if is_shared else translations
    return Translations()


def _accuracy_over_seeds(runs: List[Run]) -> List[Dict[str, Any]]:
    """Average the test accuracies of Long Range Arena runs that differ only in the random seed.

    Return one dictionary per combination of task, model, options and data, with the keys ``task``, ``model``,
    ``seeds`` (number), ``mean``, and ``deviation`` (sample standard deviation, or None for a single seed).
    Notes about runs that cannot be averaged are added to the runs.
    """
    groups: List[List[Result]] = []
    for run in runs:
        result = run.result
        if result is None:
            continue
        same = [group for group in groups if (group[0].title, group[0].model) == (result.title, result.model)]
        changes = [describe_differences(group[0], result) for group in same]
        if "" in changes:
            same[changes.index("")].append(result)
            continue
        if same:
            run.notes.append(f"This seed of {result.model} is not averaged with others ({changes[0]}).")
        groups.append([result])
    names: Counter = Counter()
    entries = []
    for group in groups:
        task, model = group[0].title, group[0].model
        names[task, model] += 1
        others = f" (other options or data, {names[task, model]})" if names[task, model] > 1 else ""
        values = [result.accuracy for result in group]
        entries.append(
            {
                "task": task,
                "model": f"{model}{others}",
                "seeds": len(values),
                "mean": round(statistics.mean(values), 2),
                "deviation": round(statistics.stdev(values), 2) if len(values) > 1 else None,
            }
        )
    return entries


main = console_script(PROGRAM, build_parser, _report, path_argument="out")


if __name__ == "__main__":
    sys.exit(main())
