"""``luna-train-bitext``: from parallel text to a scored translation model.

Prepares the text (luna-prepare-bitext, whose options it takes), trains by a recipe (luna-train), averages the
last epochs' checkpoints (luna-average-checkpoints), translates the test text and scores the translation
(luna-evaluate). DIR then holds data/, checkpoints/, train.log, hypotheses.LANG and scores.json. Started again
with the same options, it goes on where it stopped. A GPU is used where there is one. Options after -- go to
fairseq-train, and override the recipe's.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Callable, List

import luna_fairseq
from fairseq import options
from luna_fairseq.commands import average_checkpoints, train
from luna_fairseq.commands.arguments import CommandParser, Number
from luna_fairseq.commands.logged import train_logged
from luna_fairseq.commands.recipes import read_recipe
from luna_fairseq.commands.reporting import OWN_FOLDER, console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.same_run import options_of, same_run
from luna_fairseq.files.writing import copy_file
from luna_fairseq.text.subword import ROUTES
from luna_fairseq.translation import evaluate, prepare_bitext

PROGRAM = "luna-train-bitext"
FAMILY = "bitext"
_OWN = (*OWN_FOLDER, "--source-lang", "-s", "--target-lang", "-t", "--valid-subset")
# What fairseq-train logs of updates, epochs and validation.
SHOWN = ("| train |", "| train_inner |", "| valid |")


def build_parser() -> CommandParser:
    """The command's options."""
    parser = prepare_bitext.build_parser()
    parser.prog = PROGRAM
    parser.usage = "%(prog)s [options] [-- fairseq-train options]"
    parser.description = (__doc__ or "").split("\n\n", 1)[-1]
    recipe = "demo, small, base, or any other of translation: luna-recipes lists them (default: %(default)s)"
    parser.add_argument("--recipe", default="small", metavar="NAME", help=recipe)
    parser.count("--average", 5, "epochs to average at the end")
    samples = "translations to show (default: 10)"
    parser.add_argument("--samples", type=Number(int, least=0), default=10, metavar="N", help=samples)
    return parser


def run(args: argparse.Namespace, extra: List[str]) -> None:
    """All steps.

    Raises:
        InputError: the input of a step is bad, or fairseq-train failed.
        SystemExit: a step failed and said why.
    """
    if args.testpref is None:
        raise InputError("--testpref is missing: the text to translate and to score")
    recipe = read_recipe(args.recipe, FAMILY)
    settings = options_of([*recipe.words(), *extra])
    epochs = int(settings.get("--max-epoch", 0))
    if 0 < epochs < args.average:
        raise InputError(
            f"--average {args.average}: training ends after {epochs} epochs: give --average {epochs}"
        )
    if "--sentence-diagonal" in settings and args.documents is None:
        raise InputError("--sentence-diagonal is of documents: give --documents 256, or another --recipe")
    out, data, checkpoints = args.destdir, args.destdir / "data", args.destdir / "checkpoints"
    subsets = [f"valid{number or ''}" for number in range(len(args.validpref.split(",")))]
    given = ["--source-lang", args.source_lang, "--target-lang", args.target_lang]
    given += ["--save-dir", str(checkpoints), "--valid-subset", ",".join(subsets)]
    # fairseq looks for names of files among them, and would refuse valid1.
    given += ["--ignore-unused-valid-subsets"]
    given += ["--keep-last-epochs", str(args.average), "--log-interval", "100", *extra]
    # What fairseq-train would refuse, before there is anything that it could read.
    words = ["data", *train.launch_here(recipe, given).options]
    luna_fairseq.register()
    options.parse_args_and_arch(options.get_training_parser(), words)
    _say(f"prepare: {data}")
    preparation = prepare_bitext.Preparation(argparse.Namespace(**{**vars(args), "destdir": data}))
    preparation.check()
    # Before the data that the checkpoints belong to is replaced.
    same_run(out, "--destdir", preparation.identity(), (checkpoints / "checkpoint_last.pt").is_file())
    preparation.run()
    preparation.check_positions(settings)
    model = ROUTES[args.subword].model_file  # from_pretrained looks for it beside the checkpoint
    copy_file(data / model, checkpoints / model)

    log = out / "train.log"
    _say(f"train: {checkpoints} (everything fairseq-train says: {log})")
    command = train.command([str(recipe.path), preparation.data.path, *given], option="--destdir")
    train_logged(command, log, "train", SHOWN)

    averaged = checkpoints / "averaged.pt"
    _say(f"average: {averaged}")
    _step(average_checkpoints.main, ["--output", str(averaged), *_inputs(checkpoints, args.average)])

    _say(f"translate and score: {out}")
    words = [str(data), "--path", str(averaged), "--results", str(out), "--samples", str(args.samples)]
    _step(evaluate.main, words + (["--", "--cpu"] if "--cpu" in extra else []))


def _say(what: str) -> None:
    print(f"\n== {what}", flush=True)


def _step(command: Callable[[List[str]], int], words: List[str]) -> None:
    status = command(words)
    if status:
        raise SystemExit(status)


def _inputs(checkpoints: Path, average: int) -> List[str]:
    """What can be averaged, where training ended early: fewer epochs, or within the first one."""
    there = sum(bool(re.fullmatch(r"checkpoint\d+\.pt", path.name)) for path in checkpoints.iterdir())
    if there == 0:
        print("training ended within its first epoch: checkpoint_last.pt is taken as it is")
        return ["--inputs", str(checkpoints / "checkpoint_last.pt")]
    if there < average:
        print(f"only {there} epochs are there to average, for --average {average}")
    return ["--inputs", str(checkpoints), "--num-epoch-checkpoints", str(min(average, there))]


main = console_script(PROGRAM, build_parser, run, place="destdir", passes_on=_OWN)


if __name__ == "__main__":
    sys.exit(main())
