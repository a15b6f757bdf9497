"""``luna-lra-seeds``: models on a task of Long Range Arena with several seeds, mean and spread as a table.

RECIPE is a recipe of Long Range Arena, as listops (luna-recipes lists them); DATA is what luna-prepare-lra
made for that task. Each model is trained with each seed, its checkpoint of the highest validation accuracy is
tested, and the accuracy goes to DIR/RECIPE/MODEL/seed-N/result.json. The table is of all results under DIR,
whatever runs made them: for each model and task the mean, the sample standard deviation, and how many seeds
there were. Started again, it does only what is left, and goes on with a training that broke off. Options
after -- go to fairseq-train, and override the recipe's. With --figure and --costs it also draws accuracy
against speed, as the paper's Figure 1, with --curves the validation accuracy during training.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, List, Match, Optional, Sequence, Tuple

from luna_fairseq.commands.arguments import CommandParser, random_seed
from luna_fairseq.commands.logged import fairseq, run_logged, train_logged
from luna_fairseq.commands.plots import check_plot
from luna_fairseq.commands.recipes import Recipe, read_recipe
from luna_fairseq.commands.reporting import OWN_FOLDER, USER_DIR, console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import content_of
from luna_fairseq.files.same_run import differences, lasting_options, options_of, same_run
from luna_fairseq.files.writing import write_text
from luna_fairseq.lra.figure import Costs, read_curve, write_curves, write_figure
from luna_fairseq.lra.writing import SPLITS
from luna_fairseq.progress import progress, say

PROGRAM = "luna-lra-seeds"
RESULT = "result.json"
TRAIN_LOG = "train.log"
ARCHITECTURE = "luna_lra_"
ANCHORED = "luna_anchored_lra_"
# The tasks' names in the paper, by what follows ARCHITECTURE.
TITLES = {
    "listop": "ListOps",
    "imdb": "Text",
    "aan": "Retrieval",
    "cifar10": "Image",
    "pf32": "Pathfinder",
    "pf128": "Path-X",
}


@dataclass(frozen=True)
class Result:
    """One trained model's accuracy on the test set, in per cent."""

    title: str
    model: str
    seed: int
    accuracy: float
    options: List[str]


def build_parser() -> CommandParser:
    """The command's options."""
    usage = "%(prog)s RECIPE DATA --out DIR [options] [-- fairseq-train options]"
    parser = CommandParser(PROGRAM, __doc__, usage=usage)
    add = parser.add_argument
    add("recipe", metavar="RECIPE", help="of Long Range Arena, as listops")
    parser.path("data", "folder that luna-prepare-lra wrote", "DATA")
    parser.path("--out", "folder of checkpoints, logs and results", "DIR", required=True)
    add(
        "--models",
        nargs="+",
        default=["transformer", "luna-16", "luna-128", "luna-256"],
        metavar="MODEL",
        help="transformer; luna-L or luna-L-p: L rows of P, -p for the mean of the last P in the place of "
        "[CLS]; luna-L-anchored or luna-L-anchored-p: with a place for each row; peer-NAME: the Transformer "
        "with that attention (default: transformer luna-16 luna-128 luna-256)",
    )
    add(
        "--seeds",
        nargs="+",
        type=random_seed,
        default=[1, 2, 3, 4, 5],
        metavar="N",
        help="(default: 1 2 3 4 5)",
    )
    parser.path("--figure", "draw accuracy against speed and memory into FILE, a PNG")
    parser.path("--costs", "for --figure: JSON of 'python -m luna_fairseq.benchmark lra'")
    parser.path("--curves", "draw validation accuracy during training into FILE, a PNG")
    return parser


def run(args: argparse.Namespace, extra: List[str]) -> None:
    """Train and test whatever has no result yet, print the table, and draw what was asked for."""
    recipe = read_recipe(args.recipe, "lra")
    task = task_of(recipe)
    title, name = TITLES[task], recipe.path.stem
    models = {model: model_options(model, task) for model in args.models}
    costs = check_plots(args)
    if not args.data.is_dir():
        raise InputError(f"{args.data} is no folder: give what luna-prepare-lra made")
    curves: Dict[str, Dict[int, float]] = {}
    data = content_of([args.data], SPLITS)
    runs = [(seed, model) for seed in args.seeds for model in models]
    for seed, model in progress(runs, title, "runs"):
        folder = args.out / name / model / f"seed-{seed}"
        options = [*recipe.words(), *models[model], *extra]
        done = read_result(folder / RESULT) if (folder / RESULT).is_file() else None
        if done is not None and done.options != options:
            changes = "; ".join(differences(options_of(done.options), options_of(options)))
            raise InputError(
                f"{folder / RESULT} is of a run with other options ({changes}): give another --out, or "
                f"remove {folder}"
            )
        begun = done is not None or (folder / "checkpoint_last.pt").is_file()
        same_run(folder, "--out", {**lasting_options(options), "data": data}, begun)
        if done is None:
            done = train_and_test(args.data, folder, options, title, model, seed)
        say(f"{title}, {model}, seed {seed}: {done.accuracy:.2f}")
        curves[f"{model}, seed {seed}"] = read_curve(folder / TRAIN_LOG)
    results = [read_result(path) for path in sorted(args.out.glob(f"*/*/*/{RESULT}"))]
    print()
    print(table(results))
    if costs is not None:
        common, accuracies = common_accuracies([result for result in results if result.model in models])
        write_figure(args.figure, accuracies, costs, common)
    if args.curves is not None:
        write_curves(args.curves, curves, title)


def check_plots(args: argparse.Namespace) -> Optional[Costs]:
    """The costs for ``--figure``, when it was given. Raises InputError, before anything is trained, where the
    plots cannot be drawn."""
    if (args.figure is None) != (args.costs is None):
        raise InputError("--figure and --costs go together: give both, or neither")
    for option, path in (("--figure", args.figure), ("--curves", args.curves)):
        if path is not None:
            check_plot(path, option)
    if args.costs is None:
        return None
    costs = Costs(args.costs)
    for model in args.models:
        costs.of(model)
    return costs


def task_of(recipe: Recipe) -> str:
    """The task, as architectures are named after it. Raises InputError for a recipe of something else."""
    name = recipe.settings["model"]["_name"]
    tasks = {f"{ARCHITECTURE}{task}": task for task in TITLES}
    if name not in tasks:
        raise InputError(
            f"{recipe.path} is no recipe of Long Range Arena: its model is {name}, not luna_lra_.."
        )
    return tasks[name]


def model_options(model: str, architecture: str) -> List[str]:
    """Of fairseq-train. Raises InputError where there is no such model."""
    if model == "transformer":
        return ["--arch", f"transformer_lra_{architecture}"]
    if model.startswith("peer-"):
        return ["--arch", f"peer_lra_{architecture}", "--attention", model[len("peer-") :]]
    match = parts_of(model)
    if match is None:
        raise InputError(
            f"--models {model}: expected transformer, luna-L, luna-L-p, luna-L-anchored, "
            "luna-L-anchored-p or peer-NAME, as luna-16"
        )
    words = ["--arch", f"{ANCHORED if match[2] else ARCHITECTURE}{architecture}"]
    return words + ["--encoder-projection-length", match[1]] + (["--use-p"] if match[3] else [])


def parts_of(model: str) -> Optional[Match[str]]:
    """Rows of P, ``-anchored`` and ``-p`` of a Luna among ``--models``; None of another model."""
    return re.fullmatch(r"luna-([1-9]\d*)(-anchored)?(-p)?", model)


def train_and_test(data: Path, folder: Path, options: List[str], title: str, model: str, seed: int) -> Result:
    """Train, test the best checkpoint, and keep the result in ``folder``. Raises InputError where a command
    failed; the message names its log."""
    folder.mkdir(parents=True, exist_ok=True)
    user_dir = ["--user-dir", USER_DIR]
    words = [str(data), *user_dir, "--save-dir", str(folder), "--seed", str(seed), *options]
    train_logged(fairseq("train", words), folder / TRAIN_LOG, f"{model}, seed {seed}")
    words = [str(data), *user_dir, "--path", str(folder / "checkpoint_best.pt"), "--valid-subset", "test"]
    task, size = (options[options.index(name) + 1] for name in ("--task", "--batch-size"))
    words += ["--task", task, "--batch-size", size, "--required-batch-size-multiple", "1"]
    words += ["--log-format", "simple"]
    words += [option for option in ("--cpu", "--fp16", "--bf16") if option in options]
    log = folder / "test.log"
    run_logged(fairseq("validate", words), log, anew=True)
    found = re.findall(r"\| accuracy ([\d.]+)", log.read_text(encoding="utf-8", errors="replace"))
    if not found:
        raise InputError(f"{log} has no accuracy: does the recipe have --criterion lra_cross_entropy?")
    result = Result(title, model, seed, float(found[-1]), options)
    write_text(folder / RESULT, json.dumps(asdict(result)) + "\n")
    return result


def read_result(path: Path) -> Result:
    """Raises InputError for a damaged file."""
    try:
        return Result(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}): remove it, and start again to test anew") from error


def table(results: Sequence[Result]) -> str:
    """Mean, sample standard deviation and number of seeds, in the form of the paper's Tables 1 and 3."""
    rows = _by_model(results)
    titles = [title for title in TITLES.values() if any(title in row for row in rows.values())]
    lines = [["Model", *titles, "Avg."], ["---"] * (len(titles) + 2)]
    for model in sorted(rows, key=_model_order):
        whole = all(title in rows[model] for title in titles)
        average = f"{_mean(rows[model], titles):.2f}" if whole else "-"
        lines.append([_label(model), *(_cell(rows[model].get(title, [])) for title in titles), average])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def common_accuracies(results: Sequence[Result]) -> Tuple[str, Dict[str, float]]:
    """The tasks that every model has results of, and each model's mean accuracy on them. Raises InputError
    where there is none."""
    rows = _by_model(results)
    titles = [title for title in TITLES.values() if all(title in row for row in rows.values())]
    if not titles:
        raise InputError("--figure: the models have no task in common")
    return ", ".join(titles), {model: _mean(row, titles) for model, row in rows.items()}


def _by_model(results: Sequence[Result]) -> Dict[str, Dict[str, List[float]]]:
    """Model -> title of a task -> accuracies of its seeds."""
    rows: Dict[str, Dict[str, List[float]]] = {}
    for result in results:
        rows.setdefault(result.model, {}).setdefault(result.title, []).append(result.accuracy)
    return rows


def _mean(row: Dict[str, List[float]], titles: Sequence[str]) -> float:
    return statistics.mean(statistics.mean(row[title]) for title in titles)


def _model_order(model: str) -> Tuple[int, str, int, str]:
    """Transformer, peers by name, Luna and anchored Luna by rows of P."""
    match = parts_of(model)
    if match is None:
        return int(model != "transformer"), model, 0, ""
    return 3 if match[2] else 2, "", int(match[1]), match[3] or ""


def _label(model: str) -> str:
    match = parts_of(model)
    if match is None:
        return "Transformer" if model == "transformer" else model[len("peer-") :]
    return f"{'anchored ' if match[2] else ''}Luna-{match[1]}{', P' if match[3] else ''}"


def _cell(accuracies: List[float]) -> str:
    if not accuracies:
        return "-"
    spread = f" ± {statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    return f"{statistics.mean(accuracies):.2f}{spread} ({len(accuracies)})"


main = console_script(PROGRAM, build_parser, run, place="out", passes_on=(*OWN_FOLDER, "--seed"))


if __name__ == "__main__":
    sys.exit(main())
