"""Types of option values, and a parser that says what is wrong in one line."""

import argparse
import re
from typing import Callable, NamedTuple, NoReturn, Sequence

import torch

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# Of whole models: as fairseq's --bf16 and --fp16 hold their parameters.
MODEL_DTYPES = {name: DTYPES[name] for name in ("float32", "bfloat16", "float16")}


class OneLineParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors come without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def at_least(least: int) -> Callable[[str], int]:
    """Option type: an integer not below ``least``."""

    def convert(text: str) -> int:
        if not re.fullmatch(r"-?\d+", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer of {least} or more")
        return int(text)

    return convert


class BatchSize(NamedTuple):
    """Sentences and tokens of each, written 32x30."""

    sentences: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.sentences}x{self.tokens}"


def batch_size(text: str) -> BatchSize:
    """Option type: a :class:`BatchSize`."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not SENTENCESxTOKENS, as in 32x30")
    return BatchSize(int(match.group(1)), int(match.group(2)))


def add_projection_length(parser: argparse.ArgumentParser, default: Sequence[int] = (16,)) -> None:
    """``--projection-length``."""
    parser.add_argument(
        "--projection-length",
        type=at_least(1),
        nargs="+",
        default=list(default),
        metavar="N",
        help=f"Luna's l, several allowed (default: {' '.join(map(str, default))})",
    )
