"""Argument parser and argument types for the commands of this package."""

import argparse
import os
import re
from dataclasses import fields
from pathlib import Path
from textwrap import TextWrapper
from typing import Any, Callable, Optional, Type, TypeVar

from luna_fairseq.checks.bounds import SEED, describe, is_within


class Number:
    """Argument type for argparse that accepts only numbers within bounds.

    Args:
        kind: int or float.
        **bounds: ``least`` and ``most`` are the smallest and the largest accepted value. ``above`` and
            ``below`` are exclusive bounds.

    Example:
        >>> Number(int, least=1)("3")
        3
    """

    def __init__(self, kind: Callable[[str], float], **bounds: float):
        self.kind, self.bounds = kind, bounds

    def __call__(self, text: str) -> float:
        """Convert a command-line argument to a number. Raise an argparse error if it is out of bounds."""
        value = self.kind(text)
        if not is_within(value, self.bounds):
            raise argparse.ArgumentTypeError(f"must be {describe(self.bounds)}, not {text}")
        return value

    def __repr__(self) -> str:
        # Shown in argparse's message if the argument is not a number.
        return "number"


Options = TypeVar("Options")


def read_options(kind: Type[Options], args: argparse.Namespace, **values: Any) -> Options:
    """Create a dataclass ``kind`` from arguments named like its fields. ``values`` take precedence."""
    given = vars(args)
    known = {field.name: given[field.name] for field in fields(kind) if field.name in given}  # type: ignore[arg-type]
    return kind(**{**known, **values})


positive = Number(int, least=1)
random_seed = Number(int, **SEED)


def parse_path(text: str) -> Path:
    """Convert a command-line argument to a path. A path with a leading dash is made absolute."""
    return Path(text).absolute() if text.startswith("-") else Path(text)


def parse_data_folder(text: str) -> Path:
    """Convert a command-line argument to a path. Raise an error if fairseq would split or expand the name."""
    if "${" in text or os.pathsep in text:
        raise argparse.ArgumentTypeError(
            f"{text}: fairseq expands ${{..}} and splits at '{os.pathsep}'. Give another name"
        )
    return parse_path(text)


class HelpFormatter(argparse.HelpFormatter):
    """``--help`` formatter that wraps paragraphs and preserves the line breaks of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap each paragraph separately. Paragraphs that begin with "example:" are kept as they are."""
        paragraphs = text.strip().split("\n\n")
        wrapper = TextWrapper(width, break_on_hyphens=False)
        return "\n\n".join(
            part if part.startswith("example:") else wrapper.fill(" ".join(part.split()))
            for part in paragraphs
        )


def describe_command(doc: str) -> str:
    r"""Build the description for ``--help`` from the docstring of a command's module.

    Example:
        >>> describe_command("Command ``luna-x``: print x.\n\nMore about x.")
        'Print x.\n\nMore about x.'
    """
    if doc.startswith("``") or re.match("Command ``[^`]+``, which ", doc):
        return doc.split("\n\n", 1)[-1]
    sentence = re.sub(r"\ACommand ``[^`]+``: ", "", doc)
    return sentence[:1].upper() + sentence[1:]


class CommandParser(argparse.ArgumentParser):
    """Argument parser of a command, with methods that add common options.

    Args:
        program: name of the command.
        doc: docstring of the command's module; see :func:`describe_command`.
        example: command line at the end of ``--help``.
        **options: other arguments of :class:`argparse.ArgumentParser`.
    """

    def __init__(self, program: str, doc: Optional[str], example: str = "", **options: Any):
        options.setdefault("epilog", f"example:\n  {example}" if example else None)
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(prog=program, description=describe_command(doc or ""), **options)

    def path(self, name: str, help: str, metavar: str = "FILE", **options: Any) -> None:
        """Add an argument whose value is the path of a file or a folder."""
        kind = parse_data_folder if name == "--destdir" else parse_path
        self.add_argument(name, type=kind, metavar=metavar, help=help, **options)

    def count(self, name: str, default: Optional[int], help: str, **options: Any) -> None:
        """Add an option whose value is a positive integer."""
        text = help if default is None else f"{help} (default: %(default)s)"
        self.add_argument(name, type=positive, metavar="N", default=default, help=text, **options)

    def workers(self, description: str = "number of processes") -> None:
        """Add ``--workers``, the number of processes (default: one per core)."""
        text = f"{description} (default: one per core). The output does not depend on this number"
        self.count("--workers", None, text)
        self.set_defaults(workers=os.cpu_count() or 1)

    def ema(self) -> None:
        """Add the flag ``--ema``, which selects the exponential moving average of a checkpoint's weights."""
        text = (
            "use the exponential moving average of the weights, which fairseq-train --store-ema stores "
            "(default: use the trained weights)"
        )
        self.add_argument("--ema", action="store_true", help=text)

    def max_unknown(self) -> None:
        """Add ``--max-unknown``, the maximum percentage of unknown tokens in a text (default: 2)."""
        self.add_argument(
            "--max-unknown",
            type=Number(float, least=0, most=100),
            default=2.0,
            metavar="PERCENT",
            help="refuse a text if more than this percentage of its tokens is unknown (default: %(default)g)",
        )
