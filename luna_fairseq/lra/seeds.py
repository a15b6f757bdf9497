"""Command ``luna-lra-seeds``: train models on Long Range Arena with several seeds, and compare them.

RECIPE is a recipe of Long Range Arena, such as listops (luna-recipes lists them). DATA is the folder that
luna-prepare-lra made for that task. For every model and seed, the checkpoint with the highest validation
accuracy is tested, and its accuracy is written to DIR/RECIPE/MODEL/seed-N/result.json.

The command prints a table of all results under DIR, including those of earlier runs. It shows the mean, the
sample standard deviation and the number of seeds for each model and task.

If you start the command again, it resumes an interrupted training and skips finished runs. Options after --
are passed to fairseq-train and override the recipe. One GPU is used, so that a batch has the recipe's size.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Dict, List, Match, Optional, Sequence, Tuple

from luna_fairseq.commands.arguments import CommandParser, random_seed
from luna_fairseq.commands.logged import DivergedError, fairseq_command, run_logged, train_logged
from luna_fairseq.commands.plots import check_plot
from luna_fairseq.commands.recipes import Recipe, read_recipe
from luna_fairseq.commands.reporting import OWN_FOLDER, USER_DIR, console_script
from luna_fairseq.commands.run_length import check_not_longer
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import checksum_of_data
from luna_fairseq.files.same_run import check_same_run, parse_options, select_fixed_options
from luna_fairseq.files.writing import check_separate, write_text
from luna_fairseq.lra.figure import Costs, read_curve, write_curves, write_figure
from luna_fairseq.lra.layout import SPLITS
from luna_fairseq.lra.prepare import RECORD
from luna_fairseq.lra.results import RESULT, Result, check_comparable, read_result
from luna_fairseq.progress import progress, say

PROGRAM = "luna-lra-seeds"
TRAIN_LOG = "train.log"
ARCHITECTURE = "luna_lra_"
ANCHORED = "luna_anchored_lra_"
# Name of each task in the paper, keyed by the part of the architecture name that follows ARCHITECTURE.
TITLES = {
    "listop": "ListOps",
    "imdb": "Text",
    "aan": "Retrieval",
    "cifar10": "Image",
    "pf32": "Pathfinder",
    "pf128": "Path-X",
}
# Key of TITLES for each task of luna-prepare-lra.
TASK_OF_PREPARED = {
    "listops": "listop",
    "text": "imdb",
    "retrieval": "aan",
    "image": "cifar10",
    "pathfinder32": "pf32",
    "pathfinder32-regenerated": "pf32",
    "pathfinder128": "pf128",
}


# Options of fairseq-train that the command's own options determine.
_OWN = (
    *(*OWN_FOLDER, "--restore-file", "--seed", "--task", "--arch", "-a", "--attention"),
    *("--encoder-projection-length", "--use-p", "--user-dir"),
)


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    usage = "%(prog)s RECIPE DATA --out DIR [options] [-- fairseq-train options]"
    example = (
        "luna-lra-seeds listops data/lra/listops --out runs/lra \\\n"
        "      --models transformer luna-16 --seeds 1 2 3 -- --max-update 5000"
    )
    parser = CommandParser(PROGRAM, __doc__, usage=usage, example=example)
    add = parser.add_argument
    add("recipe", metavar="RECIPE", help="recipe of Long Range Arena, such as listops")
    parser.path("data", "folder that luna-prepare-lra wrote", "DATA")
    parser.path("--out", "folder to write checkpoints, logs and results to", "DIR", required=True)
    add(
        "--models",
        nargs="+",
        default=["transformer", "luna-16", "luna-128", "luna-256"],
        metavar="MODEL",
        help="models to train: transformer; luna-L for Luna with a packed sequence P of length L; luna-L-p "
        "to classify from the mean of the last P instead of [CLS]; luna-L-anchored or luna-L-anchored-p for "
        "anchored Luna; peer-NAME for a Transformer with another attention, such as peer-linear (default: "
        "transformer luna-16 luna-128 luna-256)",
    )
    add(
        "--seeds",
        nargs="+",
        type=random_seed,
        default=[1, 2, 3, 4, 5],
        metavar="N",
        help="random seeds (default: 1 2 3 4 5)",
    )
    parser.path(
        "--figure", "draw accuracy against speed and memory, as the paper's Figure 1, into a PNG file"
    )
    parser.path("--costs", "for --figure: file that 'python -m luna_fairseq.benchmark lra --json FILE' wrote")
    parser.path("--curves", "draw validation accuracy during training into a PNG file")
    return parser


def run(args: argparse.Namespace, extra: List[str]) -> None:
    """Train and test every model with every seed, draw the requested plots, and print a table.

    Skip runs that diverge, and raise InputError with their names at the end.
    """
    recipe = read_recipe(args.recipe, "lra", extra)
    task = find_task(recipe)
    title, name = TITLES[task], recipe.path.stem
    models = {model: [*recipe.words(), *model_options(model, task)] for model in args.models}
    costs = check_plots(args)
    if not args.data.is_dir():
        raise InputError(f"{args.data} is not a folder. Give a folder that luna-prepare-lra made.")
    check_prepared_task(args.data, task)
    curves: Dict[str, Dict[int, float]] = {}
    data = checksum_of_data([args.data], SPLITS)
    runs = {
        args.out / name / model / f"seed-{seed}": Result(title, model, seed, 0.0, [*options, *extra], data)
        for seed in args.seeds
        for model, options in models.items()
    }
    results = {path: read_result(path) for path in sorted(args.out.glob(f"*/*/*/{RESULT}"))}
    check_comparable({**results, **{folder / "planned": planned for folder, planned in runs.items()}})
    diverged: List[str] = []
    for folder, planned in progress(runs.items(), title, "runs"):
        identity = {**select_fixed_options(planned.options, compares_results=True), "data": data}
        check_same_run(folder, "--out", identity, [RESULT, "checkpoint_last.pt"])
        path, label = folder / RESULT, f"{planned.model}, seed {planned.seed}"
        if path not in results:
            check_not_longer(folder, "--out", planned.options)
            try:
                results[path] = train_and_test(args.data, folder, planned)
            except DivergedError as error:
                say(str(error))
                diverged.append(label)
                continue
        say(f"{title}, {label}: {results[path].accuracy:.2f}")
        curves[label] = read_curve(folder / TRAIN_LOG)
        if args.curves is not None and not curves[label]:
            say(f"{folder / TRAIN_LOG} has no validation accuracies for --curves")
    done = [results[path] for path in sorted(results)]
    if costs is not None:
        common, accuracies = common_accuracies([result for result in done if result.model in models])
        write_figure(args.figure, accuracies, costs, common)
    if args.curves is not None:
        write_curves(args.curves, curves, title)
    print()
    print(format_table(done))
    if diverged:
        raise InputError(f"{'; '.join(diverged)} diverged, and are missing in the table.")


def check_plots(args: argparse.Namespace) -> Optional[Costs]:
    """Return the training costs to plot with ``--figure``, or None if ``--figure`` is not given.

    Raise InputError if a plot requested with ``--figure`` or ``--curves`` cannot be drawn, or both are one
    file.
    """
    if (args.figure is None) != (args.costs is None):
        raise InputError("--figure and --costs need each other. Give both, or neither.")
    others = [args.costs]
    for option, path in (("--figure", args.figure), ("--curves", args.curves)):
        if path is not None:
            check_separate(path, option, filter(None, others))
            check_plot(path, option)
            others.append(path)
    if args.costs is None:
        return None
    costs = Costs(args.costs)
    for model in args.models:
        costs.find(model)
    return costs


def find_task(recipe: Recipe) -> str:
    """Return the Long Range Arena task of a recipe, such as "listop", from the name of its architecture.

    A recipe is a YAML file of fairseq-train options. Raise InputError if its model is not ``luna_lra_TASK``.
    """
    name = recipe.settings["model"]["_name"]
    tasks = {f"{ARCHITECTURE}{task}": task for task in TITLES}
    if name not in tasks:
        raise InputError(
            f"{recipe.path} is not a recipe of Long Range Arena: its model is {name}, expected luna_lra_.."
        )
    return tasks[name]


def check_prepared_task(data: Path, task: str) -> None:
    """Raise InputError if luna-prepare-lra prepared the folder ``data`` for another task than ``task``."""
    try:
        prepared = next(iter(json.loads((data / RECORD).read_text(encoding="utf-8"))), "")
    except (OSError, ValueError, TypeError):
        return  # prepared by another program
    found = TASK_OF_PREPARED.get(prepared, task)
    if found != task:
        raise InputError(
            f"{data} holds the data of {TITLES[found]}, but the recipe is for {TITLES[task]}. Give a folder "
            "that luna-prepare-lra made for this task."
        )


def model_options(model: str, task: str) -> List[str]:
    """Return the fairseq-train options for a model of ``--models`` and a task such as "listop".

    Example:
        >>> model_options("luna-16-p", "listop")
        ['--arch', 'luna_lra_listop', '--encoder-projection-length', '16', '--use-p']
    """
    if model == "transformer":
        return ["--arch", f"transformer_lra_{task}"]
    if model.startswith("peer-"):
        return ["--arch", f"peer_lra_{task}", "--attention", model[len("peer-") :]]
    match = parse_luna(model)
    if match is None:
        raise InputError(
            f"--models {model}: expected transformer, luna-L, luna-L-p, luna-L-anchored, "
            "luna-L-anchored-p or peer-NAME, such as luna-16"
        )
    words = ["--arch", f"{ANCHORED if match[2] else ARCHITECTURE}{task}"]
    return words + ["--encoder-projection-length", match[1]] + (["--use-p"] if match[3] else [])


def parse_luna(model: str) -> Optional[Match[str]]:
    """Match the name of a Luna model. The groups are the length of P, "-anchored" or None, and "-p" or None.

    Example:
        >>> parse_luna("luna-16-p").groups()
        ('16', None, '-p')
    """
    return re.fullmatch(r"luna-([1-9]\d*)(-anchored)?(-p)?", model)


def train_and_test(data: Path, folder: Path, planned: Result) -> Result:
    """Train a model, test its best checkpoint, and write the result to ``result.json`` in ``folder``.

    ``planned`` is the result without its accuracy, which is not yet known. Return the complete result.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = planned.options
    # fairseq would start a process for each GPU of the machine, each of which reads a whole batch.
    start = [str(data), "--user-dir", USER_DIR, "--distributed-world-size", "1"]
    words = [*start, "--save-dir", str(folder), "--seed", str(planned.seed), *options]
    train_logged(fairseq_command("train", words), folder / TRAIN_LOG, f"{planned.model}, seed {planned.seed}")
    words = [*start, "--path", str(folder / "checkpoint_best.pt"), "--valid-subset", "test"]
    given = parse_options(options)
    for name in ("--task", "--batch-size", "--max-tokens"):
        words += [name, given[name]] if name in given else []
    words += ["--required-batch-size-multiple", "1"]
    words += ["--log-format", "simple"]
    words += [option for option in ("--cpu", "--fp16", "--bf16") if option in options]
    log = folder / "test.log"
    run_logged(fairseq_command("validate", words), log, empty_log=True)
    found = re.findall(r"\| accuracy ([\d.]+)", log.read_text(encoding="utf-8", errors="replace"))
    if not found:
        raise InputError(f"{log} has no accuracy. Use a recipe with --criterion lra_cross_entropy.")
    result = replace(planned, accuracy=float(found[-1]))
    write_text(folder / RESULT, json.dumps(asdict(result)) + "\n")
    return result


def format_table(results: Sequence[Result]) -> str:
    """Format results as a Markdown table, like Tables 1 and 3 of the paper.

    A cell shows the mean accuracy, the sample standard deviation and the number of seeds. The last column
    shows the mean over the tasks, or "-" if the model has no result on one of them.
    """
    accuracies = _group_by_model(results)
    titles = [title for title in TITLES.values() if any(title in by_task for by_task in accuracies.values())]
    lines = [["Model", *titles, "Avg."], ["---"] * (len(titles) + 2)]
    for model in sorted(accuracies, key=_sort_key):
        by_task = accuracies[model]
        is_complete = all(title in by_task for title in titles)
        average = f"{_average_over_tasks(by_task, titles):.2f}" if is_complete else "-"
        lines.append(
            [_display_name(model), *(_format_cell(by_task.get(title, [])) for title in titles), average]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def common_accuracies(results: Sequence[Result]) -> Tuple[str, Dict[str, float]]:
    """Average the accuracy of each model over the tasks that all models were tested on.

    Returns:
        Comma-separated names of these tasks, and a mapping from a model to its mean accuracy in percent.
    """
    accuracies = _group_by_model(results)
    titles = [title for title in TITLES.values() if all(title in by_task for by_task in accuracies.values())]
    if not titles:
        raise InputError(
            "--figure: the models have no task in common. Leave out the models that lack results."
        )
    return ", ".join(titles), {
        model: _average_over_tasks(by_task, titles) for model, by_task in accuracies.items()
    }


def _group_by_model(results: Sequence[Result]) -> Dict[str, Dict[str, List[float]]]:
    """Group the accuracies of all seeds, in percent, as ``{model: {task: accuracies}}``."""
    accuracies: Dict[str, Dict[str, List[float]]] = {}
    for result in results:
        by_task = accuracies.setdefault(result.model, {})
        by_task.setdefault(result.title, []).append(result.accuracy)
    return accuracies


def _average_over_tasks(by_task: Dict[str, List[float]], titles: Sequence[str]) -> float:
    """Average the accuracies ``by_task`` over the seeds of each task, and then over the tasks ``titles``."""
    return statistics.mean(statistics.mean(by_task[title]) for title in titles)


def _sort_key(model: str) -> Tuple[int, str, int, str]:
    """Return the key that sorts models: the Transformer, other baselines by name, Luna, then anchored Luna.

    Luna models are sorted by the length of the packed sequence P.
    """
    match = parse_luna(model)
    if match is None:
        return int(model != "transformer"), model, 0, ""
    return 3 if match[2] else 2, "", int(match[1]), match[3] or ""


def _display_name(model: str) -> str:
    """Return the name of a model for the results table.

    Example:
        >>> _display_name("luna-16-anchored-p"), _display_name("peer-linear")
        ('anchored Luna-16, P', 'linear')
    """
    match = parse_luna(model)
    if match is None:
        return "Transformer" if model == "transformer" else model[len("peer-") :]
    return f"{'anchored ' if match[2] else ''}Luna-{match[1]}{', P' if match[3] else ''}"


def _format_cell(accuracies: List[float]) -> str:
    """Format the mean, sample standard deviation and number of accuracies, or return "-" if there are none.

    Example:
        >>> _format_cell([60.0, 62.0])
        '61.00 ± 1.41 (2)'
    """
    if not accuracies:
        return "-"
    spread = f" ± {statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    return f"{statistics.mean(accuracies):.2f}{spread} ({len(accuracies)})"


main = console_script(PROGRAM, build_parser, run, path_argument="out", passes_on=_OWN)


if __name__ == "__main__":
    sys.exit(main())
