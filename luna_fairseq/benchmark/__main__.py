"""Command line of the benchmark."""

import argparse
import sys
from pathlib import Path
from typing import List, Optional, Sequence

import torch

from luna_fairseq.benchmark import apollo, attention, causal, decode, lra, plot, train
from luna_fairseq.benchmark.measure import Settings
from luna_fairseq.benchmark.options import OneLineParser, at_least
from luna_fairseq.benchmark.report import (
    Section,
    check_writable,
    environment,
    format_section,
    records,
    write_json,
)
from luna_fairseq.errors import InputError

PROGRAM = "python -m luna_fairseq.benchmark"
DESCRIPTION = """Speed and memory of Luna beside named peers. Every figure is a median (with quartiles) of
interleaved repetitions, every ratio is of speeds in the same run, above 1 where the row is faster than the peer.
Without a sub-command all of them run, with default sizes."""
COMMANDS = {
    "causal": causal,
    "attention": attention,
    "train": train,
    "lra": lra,
    "decode": decode,
    "apollo": apollo,
}


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Console entry point.

    Args:
        argv: command-line arguments, those of the process by default

    Returns:
        exit status: 0, or 1 after one line on stderr
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        run(parser, args)
    except InputError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    return 0


def build_parser() -> OneLineParser:
    parser = OneLineParser(prog=PROGRAM, description=DESCRIPTION)
    add_common_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="{" + ",".join(COMMANDS) + "}")
    for name, module in COMMANDS.items():
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        # Given before or after the sub-command; what is not given after it must not undo what came before.
        add_common_options(command, default=argparse.SUPPRESS)
        module.add_options(command)
        command.add_argument("--without", nargs="+", default=[], metavar="FORM", help="leave these rows out")
    return parser


def add_common_options(parser: argparse.ArgumentParser, **override: str) -> None:
    def add(name: str, **keywords: object) -> None:
        parser.add_argument(name, **{**keywords, **override})  # type: ignore[arg-type]

    add("--repetitions", type=at_least(2), default=7, metavar="N", help="samples of each form (default: 7)")
    add("--threads", type=at_least(1), default=None, metavar="N", help="CPU threads (default: torch's own choice)")
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    add("--seed", type=at_least(0), default=1, metavar="N", help="of inputs, parameters and dropout (default: 1)")
    add("--json", type=Path, default=None, metavar="FILE", help="write everything measured to FILE")
    add("--plot", type=Path, default=None, metavar="FILE", help="draw everything measured into FILE, a PNG")


def run(parser: argparse.ArgumentParser, args: argparse.Namespace) -> List[Section]:
    """Measure, print, and write what ``--json`` and ``--plot`` name."""
    for option, path in (("--json", args.json), ("--plot", args.plot)):
        if path is not None:
            check_writable(path, option)
    if args.plot is not None:
        plot.require_matplotlib()
    check_device(args.device)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    settings = Settings(args.repetitions, torch.get_num_threads(), args.device, args.seed)
    where = environment(settings)
    print("\n".join(f"{name}: {value}" for name, value in where.items()), flush=True)
    sections = []
    for name in [args.command] if args.command else COMMANDS:
        options = args if args.command else parser.parse_args([name])
        section = COMMANDS[name].run(options, settings)
        print("\n" + format_section(section), flush=True)
        sections.append(section)
    if args.json is not None:
        values = {s.name: {"notes": list(s.notes), "peers": list(s.peers), "results": records(s)} for s in sections}
        write_json(args.json, {"environment": where, **values})
    if args.plot is not None:
        plot.write_png(args.plot, sections, where)
    return sections


def check_device(name: str) -> None:
    """Raise InputError unless the device is the CPU or a GPU that is there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"unknown device {name!r}: give --device cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"there is no device {name}: torch sees {torch.cuda.device_count()} GPUs; use --device cpu")


if __name__ == "__main__":
    sys.exit(main())
