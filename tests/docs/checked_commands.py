"""Check the options of a documented command with the command's own parser, without running the command."""

import contextlib
import importlib
import io
from typing import Callable, Dict, List

from small_worlds import MODULES

from fairseq import options
from luna_fairseq.commands.launch import compute_launch
from luna_fairseq.commands.recipes import read_recipe

PARSERS: Dict[str, Callable] = {
    "fairseq-train": options.get_training_parser,
    "fairseq-generate": options.get_generation_parser,
    "fairseq-interactive": options.get_interactive_generation_parser,
    "fairseq-validate": options.get_validation_parser,
    "fairseq-eval-lm": options.get_eval_lm_parser,
}


def check(words: List[str]) -> None:
    """Raise AssertionError if the command would refuse one of its arguments."""
    name, rest = words[0], words[1:]
    if name == "python" and rest[:1] == ["-m"]:
        name, rest = rest[1], rest[2:]
        if name == "luna_fairseq.commands.torchrun":
            start = rest.index("-m")
            name, rest = rest[start + 1], rest[start + 2 :]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            _parse(name if name in PARSERS else MODULES.get(name, name), rest)
    except SystemExit as end:
        raise AssertionError(f"{' '.join(words)}: {said.getvalue()}") from end


def _parse(name: str, words: List[str]) -> None:
    if name in PARSERS:
        # The parser checks that this file exists.
        words = [__file__ if before == "--shortlist" else word for before, word in zip(["", *words], words)]
        args = options.parse_args_and_arch(PARSERS[name](), input_args=words)
        if name in ("fairseq-train", "fairseq-validate"):
            assert args.max_tokens or args.batch_size, f"{name} {words}: no --max-tokens or --batch-size"
        if name == "fairseq-train":
            assert args.optimizer, f"{name} {words}: no --optimizer"
    elif name == MODULES.get("luna-train"):
        recipe, data, *given = words[words[0] == "--dry-run" :]
        _parse("fairseq-train", [data, *compute_launch(read_recipe(recipe), given, 1, None).options])
    elif name == MODULES.get("luna-recipes"):
        if words:
            read_recipe(words[0])
    elif name.startswith("luna_fairseq."):
        module = importlib.import_module(f"{name}.__main__" if name == "luna_fairseq.benchmark" else name)
        ours = words[: words.index("--")] if "--" in words else words
        if hasattr(module, "build_parser"):
            module.build_parser().parse_args(ours)
        else:
            _against_help(module.main, ours)
    else:
        assert name in ("make", "source", "sbatch", "sacrebleu", "pip", "python"), f"{name} is not known here"


def _against_help(main: Callable, words: List[str]) -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main(["--help"])
    for word in words:
        assert not word.startswith("--") or word in said.getvalue(), f"{word} is not in --help"
