"""Command ``luna-train-bitext``: train a translation model on parallel text, from raw text to a score.

The command prepares the text (luna-prepare-bitext, whose options it takes), trains with a recipe (luna-train)
and averages the checkpoints of the last epochs (luna-average-checkpoints). It then translates each test text
and scores the translation (luna-evaluate). It uses a GPU if there is one.

DIR then contains data/, checkpoints/, train.log, hypotheses.LANG and scores.json. With several test texts,
the second is in hypotheses-test1.LANG and scores-test1.json. If you start the command again with the same
options, it continues where it stopped. Options after -- go to fairseq-train and override
the recipe.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import luna_fairseq
from luna_fairseq.commands.arguments import CommandParser, Number, describe_command, read_options
from luna_fairseq.commands.logged import train_logged
from luna_fairseq.commands.recipes import read_recipe
from luna_fairseq.commands.reporting import OWN_FOLDER, console_script
from luna_fairseq.commands.run_length import check_not_longer, find_epochs
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import digest, file_stamps
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.same_run import check_same_run, parse_options
from luna_fairseq.files.writing import copy_file
from luna_fairseq.translation import evaluate, prepare_bitext
from luna_fairseq.translation.score import add_tokenize
from luna_fairseq.translation.scores import (
    check_plain_reference,
    check_scoring_packages,
    choose_tokenizer,
    should_score_moses_tokens,
)

PROGRAM = "luna-train-bitext"
EXAMPLE = (
    f"{PROGRAM} -s en -t de --trainpref text/train --validpref text/valid \\\n"
    "    --testpref text/test --vocab-size 10000 --recipe small --destdir run"
)
STEPS = "train-bitext.json"  # record of finished steps
FAMILY = "bitext"  # family of recipes in which --recipe is looked up first
_OWN = (*OWN_FOLDER, "--source-lang", "-s", "--target-lang", "-t", "--valid-subset")
# Substrings of the fairseq-train log lines to print: updates, epochs and validation.
SHOWN = ("| train |", "| train_inner |", "| valid |")


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    parser = prepare_bitext.build_parser()
    parser.prog = PROGRAM
    parser.usage = "%(prog)s [options] [-- fairseq-train options]"
    parser.description = describe_command(__doc__ or "")
    parser.epilog = f"example:\n  {EXAMPLE}"
    recipe = "demo, small, base or another recipe that luna-recipes lists (default: %(default)s)"
    parser.add_argument("--recipe", default="small", metavar="NAME", help=recipe)
    parser.count("--average", 5, "number of epochs whose checkpoints are averaged at the end")
    samples = "number of translations to print (default: %(default)s)"
    parser.add_argument("--samples", type=Number(int, least=0), default=10, metavar="N", help=samples)
    add_tokenize(parser)
    return parser


def run(args: argparse.Namespace, extra: List[str]) -> None:
    """Prepare the text, train, average the checkpoints, translate and score.

    Args:
        args: parsed command-line arguments.
        extra: options for fairseq-train.

    Raises:
        InputError: The input of a step is invalid, or fairseq-train failed.
        SystemExit: Another command failed and printed the reason.
    """
    # Imported here so that --help does not wait for fairseq.
    from fairseq import options
    from luna_fairseq.commands import average_checkpoints, train
    from luna_fairseq.text.subword import SUBWORD_METHODS
    from luna_fairseq.translation.preparation import Preparation

    if args.testpref is None:
        raise InputError("--testpref is missing. Give the text to translate and score.")
    tokenizer = choose_tokenizer(args.tokenize, args.target_lang)
    check_scoring_packages(tokenizer, args.target_lang)  # before the training
    recipe = read_recipe(args.recipe, FAMILY, extra)
    settings = parse_options([*recipe.words(), *extra])
    if "--sentence-diagonal" in settings and args.documents is None:
        raise InputError("--sentence-diagonal needs documents. Give --documents 256, or another --recipe.")
    out, data, checkpoints = args.destdir, args.destdir / "data", args.destdir / "checkpoints"
    subsets, tests = (
        [f"{split}{number or ''}" for number in range(len(prefixes.split(",")))]
        for split, prefixes in (("valid", args.validpref), ("test", args.testpref))
    )
    training = ["--source-lang", args.source_lang, "--target-lang", args.target_lang]
    training += ["--save-dir", str(checkpoints), "--valid-subset", ",".join(subsets)]
    # Without this option, fairseq rejects files such as valid1 that are not among the subsets.
    training += ["--ignore-unused-valid-subsets"]
    training += ["--keep-last-epochs", str(args.average), "--log-interval", "100", *extra]
    # Parse fairseq-train's options now, so that it does not reject them after the preparation.
    words = ["data", *train.launch_here(recipe, training).options]
    luna_fairseq.register()
    parser = options.get_training_parser()
    parser.prog, parser.usage = PROGRAM, "%(prog)s [options] [-- fairseq-train options]"
    parsed = options.parse_args_and_arch(parser, words)
    epochs = parsed.max_epoch or 0
    if 0 < epochs < args.average:
        raise InputError(
            f"--average {args.average} exceeds the {epochs} epochs of training. Give --average {epochs}."
        )
    _print_step(f"prepare: {data}")
    preparation = Preparation(read_options(prepare_bitext.BitextOptions, args, destdir=data))
    preparation.check()
    if should_score_moses_tokens(args.target_lang):
        for test in tests:
            check_plain_reference(
                [target for _, target in preparation.text[test].pairs()],
                f"{preparation.prefixes[test]}.{args.target_lang}",
            )
    # Check this before replacing the data that the checkpoints were trained on.
    last = "checkpoints/checkpoint_last.pt"
    check_same_run(out, "--destdir", preparation.resume_settings(), [last])
    check_not_longer(checkpoints, "--destdir", words)
    preparation.run(is_trained=(out / last).is_file())
    preparation.check_positions(settings)
    # from_pretrained looks for the model of the subwords next to the checkpoint, and refuses two of them.
    model = SUBWORD_METHODS[args.subword].model_file
    copy_file(data / model, checkpoints / model)
    for name in {method.model_file for method in SUBWORD_METHODS.values()} - {model}:
        (checkpoints / name).unlink(missing_ok=True)

    log = out / "train.log"
    _print_step(f"train: {checkpoints} (output of fairseq-train: {log})")
    command = train.build_command([str(recipe.path), preparation.data.path, *training], option="--destdir")
    train_logged(command, log, "train", SHOWN)

    averaged = checkpoints / "averaged.pt"
    _print_step(f"average: {averaged}")
    inputs = _select_checkpoints(checkpoints, args.average)

    def average() -> Tuple[List[str], Dict[str, Any]]:
        _run_command(average_checkpoints.main, ["--output", str(averaged), "--inputs", *map(str, inputs)])
        return [str(averaged.relative_to(out))], {}

    FinishedSteps(out, STEPS).do("average", digest(file_stamps(inputs)), average)

    words = [str(data), "--path", str(averaged), "--results", str(out), "--samples", str(args.samples)]
    words += ["--tokenize", tokenizer]
    # The model may be one of the user's own.
    user_dir = ["--user-dir", settings["--user-dir"]] if "--user-dir" in settings else []
    for test in tests:
        _print_step(f"translate and score {test}: {out}")
        more = ["--", *(["--cpu"] if "--cpu" in extra else []), *user_dir]
        _run_command(evaluate.main, [*words, "--subset", test, *more])


def _print_step(title: str) -> None:
    """Print the heading of a step."""
    print(f"\n== {title}", flush=True)


def _run_command(command: Callable[[List[str]], int], words: List[str]) -> None:
    """Call the ``main`` function of another command, and exit with its status if it fails."""
    status = command(words)
    if status:
        raise SystemExit(status)


def _select_checkpoints(checkpoints: Path, average: int) -> List[Path]:
    """Return a folder's last ``average`` epoch checkpoints, or ``checkpoint_last.pt`` if there are none."""
    found = find_epochs(checkpoints)
    if not found:
        print(f"{checkpoints} has no checkpoint of an epoch: checkpoint_last.pt is used without averaging")
        return [checkpoints / "checkpoint_last.pt"]
    if len(found) < average:
        print(f"only {len(found)} epochs can be averaged, fewer than --average {average}")
    return [found[epoch] for epoch in sorted(found)[-average:]]


main = console_script(PROGRAM, build_parser, run, path_argument="destdir", passes_on=_OWN)


if __name__ == "__main__":
    sys.exit(main())
