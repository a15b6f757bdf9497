"""What the command lines of several commands have in common."""

import argparse
import os
import re
from pathlib import Path
from textwrap import TextWrapper
from typing import Any, Callable, Optional

from luna_fairseq.checks.bounds import SEED, describe, is_within


class Number:
    """A number within bounds, for ``type=`` of an argparse option.

    Args:
        kind: int or float.
        bounds: ``least``, ``above``, ``most`` or ``below``, as in :mod:`luna_fairseq.checks.bounds`.
    """

    def __init__(self, kind: Callable[[str], float], **bounds: float):
        self.kind, self.bounds = kind, bounds

    def __call__(self, text: str) -> float:
        value = self.kind(text)
        if not is_within(value, self.bounds):
            raise argparse.ArgumentTypeError(f"must be {describe(self.bounds)}, not {text}")
        return value

    def __repr__(self) -> str:  # argparse names the type in its message about a word that is no number
        return "number"


positive = Number(int, least=1)
random_seed = Number(int, **SEED)


def path_of(text: str) -> Path:
    """A path, for ``type=`` of an argparse option; absolute if other commands would take it for an option."""
    return Path(text).absolute() if text.startswith("-") else Path(text)


def folder_of_data(text: str) -> Path:
    """A folder that fairseq is to read, for ``type=`` of an argparse option."""
    if "${" in text or os.pathsep in text:
        raise argparse.ArgumentTypeError(
            f"{text}: fairseq replaces what begins with ${{ and divides at '{os.pathsep}': give another name"
        )
    return path_of(text)


class HelpFormatter(argparse.HelpFormatter):
    """Formatter of ``--help`` that wraps paragraphs and keeps the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip().split("\n\n")
        wrapper = TextWrapper(width, break_on_hyphens=False)
        return "\n\n".join(
            part if part.startswith("example:") else wrapper.fill(" ".join(part.split()))
            for part in paragraphs
        )


def describe_command(doc: str) -> str:
    """Return the description that ``--help`` shows, from the docstring of a command's module.

    Args:
        doc: docstring that begins with "Command ``NAME``: " and a sentence. If it begins with the name alone
            or with "Command ``NAME``, which", the first paragraph is not shown.

    Example:
        >>> describe_command("Command ``luna-x``: print x.\\n\\nMore about x.")
        'Print x.\\n\\nMore about x.'
    """
    if doc.startswith("``") or re.match("Command ``[^`]+``, which ", doc):
        return doc.split("\n\n", 1)[-1]
    sentence = re.sub(r"\ACommand ``[^`]+``: ", "", doc)
    return sentence[:1].upper() + sentence[1:]


class CommandParser(argparse.ArgumentParser):
    """Parser of a command line with short methods for the commonest options.

    Args:
        program: name of the command.
        doc: docstring of its module; see :func:`describe_command`.
        example: command line that ``--help`` ends with (default: none).
        options: further arguments of :class:`argparse.ArgumentParser`.
    """

    def __init__(self, program: str, doc: Optional[str], example: str = "", **options: Any):
        options.setdefault("epilog", f"example:\n  {example}" if example else None)
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(prog=program, description=describe_command(doc or ""), **options)

    def path(self, name: str, help: str, metavar: str = "FILE", **options: Any) -> None:
        """An option, or without dashes an argument, that is a file or a folder."""
        kind = folder_of_data if name == "--destdir" else path_of
        self.add_argument(name, type=kind, metavar=metavar, help=help, **options)

    def count(self, name: str, default: Optional[int], help: str, **options: Any) -> None:
        """An option that is a whole number of at least 1; ``help`` goes on with the default."""
        shown = help if default is None else f"{help} (default: %(default)s)"
        self.add_argument(name, type=positive, metavar="N", default=default, help=shown, **options)

    def workers(self, what: str = "processes") -> None:
        """``--workers``."""
        shown = f"{what} (default: one for each core); the output does not depend on it"
        self.count("--workers", None, shown)
        self.set_defaults(workers=os.cpu_count() or 1)

    def ema(self) -> None:
        """Add ``--ema``, which takes averaged weights; see :mod:`luna_fairseq.models.ema`."""
        taken = "take the weights that fairseq-train --store-ema averaged (default: the trained ones)"
        self.add_argument("--ema", action="store_true", help=taken)

    def max_unknown(self) -> None:
        """``--max-unknown``; see :func:`luna_fairseq.text.encoders.check_unknown`."""
        self.add_argument(
            "--max-unknown",
            type=Number(float, least=0, most=100),
            default=2.0,
            metavar="PERCENT",
            help="refuse text of whose tokens more are unknown to the encoding (default: %(default)g)",
        )
