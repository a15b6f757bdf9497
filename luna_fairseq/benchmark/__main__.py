"""Command line of the benchmark."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Type

import torch
from tqdm import tqdm

from luna_fairseq.benchmark import exponents, plot, profiles
from luna_fairseq.benchmark.apollo import OptimizerStep
from luna_fairseq.benchmark.attention_tasks import CausalAttention, PackAndUnpack
from luna_fairseq.benchmark.complexity import Complexity
from luna_fairseq.benchmark.decode import Decode
from luna_fairseq.benchmark.environment import check_device, environment
from luna_fairseq.benchmark.measure import Settings, compare
from luna_fairseq.benchmark.options import OneLineParser, at_least
from luna_fairseq.benchmark.public import Public
from luna_fairseq.benchmark.report import Section, Table, records, write_json
from luna_fairseq.benchmark.task import Comparison, Task, lay_out
from luna_fairseq.benchmark.training_tasks import LongRangeArena, Train
from luna_fairseq.commands.plots import check_plot
from luna_fairseq.engine.memory import keep_freed_memory
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import check_writable

PROGRAM = "python -m luna_fairseq.benchmark"
DESCRIPTION = """Speed and memory of Luna beside named peers. Every figure is a median (with quartiles) of
interleaved repetitions, every ratio is of speeds in one run, above 1 where the row is faster than the peer.
All sub-commands run where none is given. What is measured is printed and written at once."""
COMMANDS: Dict[str, Type[Task]] = {
    "causal": CausalAttention,
    "attention": PackAndUnpack,
    "train": Train,
    "lra": LongRangeArena,
    "decode": Decode,
    "apollo": OptimizerStep,
    "complexity": Complexity,
    "public": Public,
}
# The JSON file is written at the end of every case, and within a case not more often than so [s].
SECONDS_BETWEEN_WRITES = 10.0


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
    """The command line."""
    parser = OneLineParser(prog=PROGRAM, description=DESCRIPTION)
    add_common_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="{" + ",".join(COMMANDS) + "}")
    for name, task in COMMANDS.items():
        command = commands.add_parser(name, help=task.help, description=task.help)
        # Given before or after the sub-command; what is not given after it must not undo what came before.
        add_common_options(command, default=argparse.SUPPRESS)
        task.add_options(command)
        add = command.add_argument
        add("--with", dest="with_", nargs="+", default=[], metavar="FORM", help="add these optional rows")
        add("--without", nargs="+", default=[], metavar="FORM", help="leave these rows out")
    return parser


def add_common_options(parser: argparse.ArgumentParser, **override: str) -> None:
    """Options that the program and every sub-command have."""

    def add(name: str, **keywords: object) -> None:
        parser.add_argument(name, **{**keywords, **override})  # type: ignore[arg-type]

    add("--repetitions", type=at_least(2), default=7, metavar="N", help="samples of each form (default: 7)")
    add(
        "--threads",
        type=at_least(1),
        default=None,
        metavar="N",
        help="of the CPU (default: torch's own choice)",
    )
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    add("--seed", type=at_least(0), default=1, metavar="N", help="of whatever is random (default: 1)")
    add("--json", type=Path, default=None, metavar="FILE", help="write everything measured to FILE")
    add("--plot", type=Path, default=None, metavar="FILE", help="draw everything measured into FILE, a PNG")
    add("--profile", action="store_true", help="say where the time of each job goes (on a CPU)")


def run(parser: argparse.ArgumentParser, args: argparse.Namespace) -> List[Section]:
    """Measure; print, and write to what ``--json`` names, as it comes; draw what ``--plot`` names."""
    if args.json is not None:
        check_writable(args.json, "--json")
    if args.plot is not None:
        check_plot(args.plot, "--plot")
    check_device(args.device)
    if args.profile:
        profiles.check_device(args.device)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    if args.device == "cpu":
        keep_freed_memory()  # as training does
    settings = Settings(args.repetitions, torch.get_num_threads(), args.device, args.seed)
    where = environment(settings)
    print("\n".join(f"{name}: {value}" for name, value in where.items()), flush=True)
    sections: List[Section] = []
    for name in [args.command] if args.command else COMMANDS:
        options = args if args.command else parser.parse_args([name])
        comparison = lay_out(COMMANDS[name].of(options, settings))
        sections.append(comparison.section)
        measure(comparison, settings, sections, args.json, where, profiles.roof() if args.profile else None)
    if args.plot is not None:
        plot.write_png(args.plot, sections, where)
    return sections


def measure(
    comparison: Comparison,
    settings: Settings,
    sections: List[Section],
    path: Optional[Path],
    where: Dict[str, Any],
    roof: Optional[float] = None,
) -> None:
    """Fill the section of a comparison, printing each case and writing ``path`` as the results come; with
    profiles, if their ``roof`` is given."""
    section, cases, counts = comparison
    if roof:
        section.notes.extend(profiles.notes(roof))
    names = [form.name for _, forms in cases for form in forms]
    table = Table(section, [case for case, _ in cases], names)
    print(table.head(), flush=True)
    written = time.monotonic()
    with tqdm(total=len(names) * (settings.repetitions + 2), leave=False) as progress:
        for (case, forms), count in zip(cases, counts):
            before = len(section.results)
            for rounds, results in enumerate(compare(case, forms, count, settings, progress), start=2):
                section.results[before:] = results
                now = time.monotonic()
                finished = rounds == settings.repetitions
                if path is not None and (finished or now - written > SECONDS_BETWEEN_WRITES):
                    write_json(path, where, sections)
                    written = now
            with tqdm.external_write_mode():
                print(table.rows(results), flush=True)
            if roof:
                section.profiles += profiles.of_case(results, forms, roof)
                print(profiles.table(section.profiles[-len(forms) :]), flush=True)
                if path is not None:
                    write_json(path, where, sections)
    if section.theory:
        print(exponents.table(exponents.exponents(records(section), section.theory)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
