"""``luna-train-bitext``: from parallel text to a scored translation model.

Prepares the text (luna-prepare-bitext, whose options it takes), trains by a recipe (luna-train), averages the
last epochs' checkpoints (luna-average-checkpoints), translates the test text and scores the translation
(luna-evaluate). DIR then holds data/, checkpoints/, train.log, hypotheses.LANG and scores.json. Started again
with the same options, it goes on where it stopped. A GPU is used where there is one. Options after -- go to
fairseq-train, and override the recipe's.
"""

from __future__ import annotations

import argparse
import filecmp
import shutil
import sys
from pathlib import Path
from typing import Callable, List

from luna_fairseq.commands import average_checkpoints, train
from luna_fairseq.commands.arguments import positive
from luna_fairseq.commands.logged import train_logged
from luna_fairseq.commands.recipes import find
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.text.subword import ROUTES
from luna_fairseq.translation import evaluate, prepare_bitext

PROGRAM = "luna-train-bitext"
FAMILY = "bitext"
# What fairseq-train logs of updates, epochs and validation.
SHOWN = ("| train |", "| train_inner |", "| valid |")


def build_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = prepare_bitext.build_parser()
    parser.prog = PROGRAM
    parser.usage = "%(prog)s [options] [-- fairseq-train options]"
    parser.description = (__doc__ or "").split("\n\n", 1)[1]
    parser.add_argument(
        "--recipe",
        default="small",
        metavar="NAME",
        help="demo, small, base, or any other of translation: luna-recipes lists them (default: %(default)s)",
    )
    parser.add_argument(
        "--average", type=positive, default=5, metavar="N", help="epochs to average at the end (default: 5)"
    )
    parser.add_argument(
        "--samples", type=int, default=10, metavar="N", help="translations to show (default: 10)"
    )
    return parser


def run(args: argparse.Namespace, extra: List[str]) -> None:
    """All steps.

    Raises:
        InputError: the input of a step is bad, or fairseq-train failed.
        SystemExit: a step failed and said why.
    """
    if args.testpref is None:
        raise InputError("--testpref is missing: the text to translate and to score")
    recipe = str(find(args.recipe, FAMILY))
    out, data, checkpoints = args.destdir, args.destdir / "data", args.destdir / "checkpoints"
    _say(f"prepare: {data}")
    prepare_bitext.Preparation(argparse.Namespace(**{**vars(args), "destdir": data})).run()
    _keep_encoding(data / ROUTES[args.subword].model_file, checkpoints)

    log = out / "train.log"
    _say(f"train: {checkpoints} (everything fairseq-train says: {log})")
    given = [
        "--source-lang",
        args.source_lang,
        "--target-lang",
        args.target_lang,
        "--save-dir",
        str(checkpoints),
    ]
    subsets = [f"valid{number or ''}" for number in range(len(args.validpref.split(",")))]
    given += ["--valid-subset", ",".join(subsets)]
    given += ["--keep-last-epochs", str(args.average), "--log-interval", "100", *extra]
    train_logged(train.command([recipe, str(data), *given]), log, "train", SHOWN)

    averaged = checkpoints / "averaged.pt"
    _say(f"average: {averaged}")
    words = [
        "--inputs",
        str(checkpoints),
        "--num-epoch-checkpoints",
        str(args.average),
        "--output",
        str(averaged),
    ]
    _step(average_checkpoints.main, words)

    _say(f"translate and score: {out}")
    words = [str(data), "--path", str(averaged), "--results", str(out), "--samples", str(args.samples)]
    _step(evaluate.main, words + (["--", "--cpu"] if "--cpu" in extra else []))


def _say(what: str) -> None:
    print(f"\n== {what}", flush=True)


def _step(command: Callable[[List[str]], int], words: List[str]) -> None:
    status = command(words)
    if status:
        raise SystemExit(status)


def _keep_encoding(model: Path, checkpoints: Path) -> None:
    """Checkpoints are numbers for the pieces of one encoding, and mean nothing with those of another.

    Raises:
        InputError: there are some of another one.
    """
    kept = checkpoints / model.name
    if not (checkpoints / "checkpoint_last.pt").is_file():
        checkpoints.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(model), str(kept))
    elif not kept.is_file() or not filecmp.cmp(str(model), str(kept), shallow=False):
        raise InputError(
            f"{checkpoints} holds a model of other text or another --vocab-size: "
            "give another --destdir, or remove it"
        )


main = console_script(
    PROGRAM, build_parser, lambda args, extra: run(args, extra), place="destdir", passes_on=True
)


if __name__ == "__main__":
    sys.exit(main())
