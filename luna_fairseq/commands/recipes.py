"""A recipe (configs/*/*.yaml) as options of fairseq-train, with the batch divided among the GPUs there are.

    python -m luna_fairseq.commands.recipes RECIPE [option of fairseq-train ...]

Prints the options one word a line, for scripts; the options that follow RECIPE come last and so override the recipe's.
What was computed is said on stderr: --update-freq, unless it is given, and --bf16 or --fp16, unless --bf16, --fp16 or
--fp32 is given.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from luna_fairseq.commands.reporting import USER_DIR, reported
from luna_fairseq.errors import InputError

PROGRAM = "recipe_options"
# Groups of a recipe that name what they configure, and the option that takes the name.
NAMED = {
    "task": "--task",
    "model": "--arch",
    "criterion": "--criterion",
    "optimizer": "--optimizer",
    "lr_scheduler": "--lr-scheduler",
}
# hydra: not fairseq's. user_dir, data: given by the command line.
LEFT_OUT = (("hydra", None), ("common", "user_dir"), ("task", "data"))
RECIPE_GPUS = 8


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Console entry point.

    Args:
        argv: command-line arguments, those of the process by default.

    Returns:
        Exit status: 0, or 1 after one line on stderr.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if words else 1
    return reported(PROGRAM, lambda: _print_options(Path(words[0]), words[1:]))


def _print_options(recipe: Path, given: Sequence[str]) -> None:
    gpus = torch.cuda.device_count()
    capability = torch.cuda.get_device_capability() if gpus else None
    options, explanation = launch_options(recipe, given, max(gpus, 1), capability)
    print(*explanation, sep="\n", file=sys.stderr)
    print(*options, sep="\n")


def launch_options(
    recipe: Path, given: Sequence[str], gpus: int, capability: Optional[Tuple[int, int]]
) -> Tuple[List[str], List[str]]:
    """Options of fairseq-train for this machine.

    Args:
        recipe: the file.
        given: options that override it.
        gpus: how many devices train, unless ``given`` has --distributed-world-size.
        capability: the GPUs' compute capability; None without a GPU.

    Returns:
        the options, and lines that say what was computed.

    Raises:
        InputError: there is no such recipe, or the batch cannot be divided among the GPUs.
    """
    content = read_recipe(recipe)
    options = recipe_options(content)
    frequency, batch = _update_freq(content, given, gpus)
    precision, reason = _precision(content, given, capability)
    given = [word for word in given if word != "--fp32"]
    return [*options, *frequency, *precision, *given], [batch, reason]


def read_recipe(path: Path) -> Dict[str, Any]:
    """The recipe's groups of settings.

    Raises:
        InputError: the file is missing or no recipe.
    """
    if not path.is_file():
        known = sorted(other.stem for other in path.parent.glob("*.yaml"))
        raise InputError(f"{path} does not exist; there are: {' '.join(known) or 'none'}")
    try:
        content = OmegaConf.to_container(OmegaConf.load(str(path)))
    except (OmegaConfBaseException, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict) or not all(isinstance(content.get(group), dict) for group in NAMED):
        raise InputError(f"{path} is no recipe: it needs the groups {', '.join(NAMED)}")
    return content


def recipe_options(content: Dict[str, Any]) -> List[str]:
    """The recipe's settings as words of fairseq-train's command line, with this package as --user-dir.

    Args:
        content: what ``read_recipe`` gives.
    """
    words = ["--user-dir", USER_DIR]
    for group, settings in content.items():
        for key, value in settings.items():
            if (group, None) not in LEFT_OUT and (group, key) not in LEFT_OUT:
                words += _words(NAMED[group] if key == "_name" else f"--{key.replace('_', '-')}", value)
    return words


def _words(option: str, value: Any) -> Iterator[str]:
    if value is None or value is False:  # fairseq's default of every flag
        return
    yield option
    if isinstance(value, list):
        yield from map(str, value)
    elif value is not True:
        yield str(value)


def _update_freq(content: Dict[str, Any], given: Sequence[str], gpus: int) -> Tuple[List[str], str]:
    found = _parse(given)
    devices = found.distributed_world_size or gpus
    max_tokens = found.max_tokens or content["dataset"]["max_tokens"]
    batch = RECIPE_GPUS * content["dataset"]["max_tokens"] * content["optimization"]["update_freq"][0]
    if found.update_freq is not None:
        return [], f"batch: {devices} GPUs x {max_tokens:,} tokens x --update-freq {found.update_freq}, as given"
    frequency = max(1, round(batch / (devices * max_tokens)))
    total = devices * max_tokens * frequency
    if abs(total - batch) > batch / 1000:
        raise InputError(
            f"{devices} GPUs x {max_tokens:,} tokens do not divide the recipe's batch of {batch:,} tokens: give "
            f"--max-tokens {_fitting(batch, devices, max_tokens)}, use another number of GPUs (CUDA_VISIBLE_DEVICES), "
            "or give --update-freq for another batch"
        )
    text = f"batch: {devices} GPUs x {max_tokens:,} tokens x --update-freq {frequency} = {total:,} tokens"
    return ["--update-freq", str(frequency)], text


def _fitting(batch: int, devices: int, max_tokens: int) -> int:
    """The most tokens per GPU, up to ``max_tokens``, that make the batch, to within a token each time."""
    frequency = -(-batch // (devices * max_tokens))
    return batch // (devices * frequency)


def _precision(
    content: Dict[str, Any], given: Sequence[str], capability: Optional[Tuple[int, int]]
) -> Tuple[List[str], str]:
    found = _parse(given)
    chosen = next((name for name in ("fp16", "bf16", "fp32") if getattr(found, name)), None)
    why = "as given"
    if chosen is None:
        major = capability[0] if capability else 0
        chosen = "bf16" if major >= 8 else "fp16" if major == 7 else "fp32"
        why = f"compute capability {capability[0]}.{capability[1]}" if capability else "no GPU"
    words = [] if chosen == "fp32" or getattr(found, chosen) else [f"--{chosen}"]
    # fairseq would flatten all gradients into one tensor; Apollo takes norms of each.
    if chosen == "fp16" and content["optimizer"]["_name"] == "apollo":
        words.append("--fp16-no-flatten-grads")
    return words, f"precision: {chosen} ({why})"


def _parse(given: Sequence[str]) -> argparse.Namespace:
    """The options among ``given`` that matter here."""
    parser = argparse.ArgumentParser(prog=PROGRAM, add_help=False, allow_abbrev=False)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--update-freq")
    parser.add_argument("--distributed-world-size", type=int)
    for flag in ("--fp16", "--bf16", "--fp32"):
        parser.add_argument(flag, action="store_true")
    return parser.parse_known_args(list(given))[0]


if __name__ == "__main__":
    sys.exit(main())
