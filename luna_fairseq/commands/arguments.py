"""Types of command-line arguments that several commands have."""

import argparse
import os


def positive(text: str) -> int:
    """A whole number of at least 1, for ``type=`` of an argparse option."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def at_least_one(text: str) -> float:
    """A number of at least 1, for ``type=`` of an argparse option."""
    value = float(text)
    if not value >= 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def add_workers(parser: argparse.ArgumentParser, what: str = "processes") -> None:
    """``--workers``."""
    parser.add_argument(
        "--workers",
        type=positive,
        default=os.cpu_count() or 1,
        metavar="N",
        help=f"{what} (default: one for each core); the output does not depend on it",
    )


def add_max_unknown(parser: argparse.ArgumentParser) -> None:
    """``--max-unknown``; see :func:`luna_fairseq.text.encoders.check_unknown`."""
    parser.add_argument(
        "--max-unknown",
        type=float,
        default=2.0,
        metavar="PERCENT",
        help="refuse text of whose tokens more are unknown to the encoding (default: %(default)g)",
    )
