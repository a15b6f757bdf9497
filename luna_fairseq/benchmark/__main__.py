"""Command line of the benchmark."""

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any, Dict, List, Type

import torch

from luna_fairseq.benchmark.attention import CausalAttention, PackAndUnpack
from luna_fairseq.benchmark.measure import compare, profile
from luna_fairseq.benchmark.page import environment, table, table_of, write_json, write_png
from luna_fairseq.benchmark.task import Section, Task, lay_out
from luna_fairseq.commands.arguments import Number, positive
from luna_fairseq.commands.plots import check_plot
from luna_fairseq.commands.reporting import console_script, offer_quiet
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import check_writable
from luna_fairseq.progress import progress, say

PROGRAM = "python -m luna_fairseq.benchmark"
DESCRIPTION = """Speed and memory of Luna beside named peers. Every figure is a median (with quartiles) of
interleaved repetitions, every ratio (/ peer) is of speeds in one run, above 1 where the row is faster than
the peer. All tasks run where none is given. What is measured is printed and written at once."""
TASKS: Dict[str, Type[Task]] = {"causal": CausalAttention, "attention": PackAndUnpack}
if importlib.util.find_spec("fairseq") is not None:  # which whole models need
    from luna_fairseq.benchmark.apollo import OptimizerStep
    from luna_fairseq.benchmark.decode import Decode
    from luna_fairseq.benchmark.freed_memory import keep_freed_memory
    from luna_fairseq.benchmark.train import LongRangeArena, Train

    TASKS.update(train=Train, lra=LongRangeArena, decode=Decode, apollo=OptimizerStep)
COMMON = {"repetitions": 7, "threads": torch.get_num_threads(), "seed": 1}


def _common_options() -> argparse.ArgumentParser:
    """Return a parent parser with the options of all tasks, none of which has a default.

    The command and each task need a parent of their own: parsers share the options of a common parent, and a
    default for the command would then replace what was given before the task.
    """
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    add = common.add_argument
    for name, default in COMMON.items():
        kind = Number(int, least=2) if name == "repetitions" else positive  # one would have no quartiles
        add(f"--{name}", type=kind, metavar="N", help=f"(default: {default})")
    add("--device", help="cpu, cuda or cuda:N (default: cpu)")
    add("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    add("--plot", type=Path, metavar="FILE", help="draw everything measured into FILE, a PNG")
    add("--profile", action="store_true", help="say where the time of each job goes")
    add("--check", action="store_true", help="compare the rows with their definitions, and time nothing")
    offer_quiet(common)
    return common


def build_parser() -> argparse.ArgumentParser:
    """Return the command line. The options of all tasks may stand before or after the task."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=DESCRIPTION, parents=[_common_options()])
    commands = parser.add_subparsers(dest="command", metavar="{" + ",".join(TASKS) + "}")
    rows: Dict[str, Any] = dict(nargs="+", action="extend", default=[], metavar="ROW")
    for name, task in TASKS.items():
        title = task.notes.splitlines()[0]
        parents = [_common_options()]
        add = commands.add_parser(name, help=title, description=task.notes, parents=parents).add_argument
        for option, words in task.options.items():
            add(option, **words)
        add("--with", dest="with_", help="add these optional rows", **rows)
        add("--without", help="leave these rows out", **rows)
    parser.set_defaults(device="cpu", json=None, plot=None, profile=False, check=False, quiet=False, **COMMON)
    return parser


def run(args: argparse.Namespace) -> None:
    """Measure; print, and write to what ``--json`` names, as it comes; draw what ``--plot`` names.

    Raises:
        InputError: bad options, or a row that is wrong or failed, after the others were measured
    """
    if args.json is not None:
        check_writable(args.json, "--json")
    if args.plot is not None:
        check_plot(args.plot, "--plot")
    try:
        torch.empty(0, device=args.device)
    except (RuntimeError, AssertionError) as error:
        said = str(error).splitlines()[0]
        raise InputError(f"--device {args.device}: {said}; give cpu, cuda or cuda:N") from None
    torch.set_num_threads(args.threads)
    if args.device == "cpu" and "train" in TASKS:
        keep_freed_memory()
    where = environment(args)
    print("\n".join(f"{name}: {value}" for name, value in where.items()), flush=True)
    sections: List[Section] = []

    def write() -> None:
        if args.json is not None:
            found = {s.name: {k: v for k, v in vars(s).items() if k != "changed"} for s in sections}
            write_json(args.json, {"environment": where, **found})

    for name in [args.command] if args.command else TASKS:
        given = {**vars(build_parser().parse_args([name])), **vars(args), "command": name}
        task = TASKS[name](argparse.Namespace(**given))
        sections.append(Section(name, task.rate, changed=write))
        measure(task, sections[-1])
    measured = [section for section in sections if section.results]
    if args.plot is not None and measured:
        write_png(args.plot, measured, where)
    wrong = [f"{row} is not measured: {why}" for s in sections for row, why in s.failed.items()]
    if wrong:
        raise InputError("; ".join(wrong))


def measure(task: Task, section: Section) -> None:
    """Fill the section of a task, printing each case as it comes."""
    cases = lay_out(task, section)
    print("", f"== {section.name} ==", *section.notes, "", sep="\n", flush=True)
    if task.args.check:
        say(table([{"row": row, "error, of what is allowed": x} for row, x in section.checks.items()]))
        cases = []
    for case, jobs in progress(cases, section.name, "cases"):
        done = len(section.results)
        compare(case, jobs, section, task.args)
        records = section.results[done:]
        if records:
            say(table_of(records, task.rate, section.peers))
        if task.args.profile:
            found = [profile(jobs[record["form"]](), record) for record in records]
            section.profiles += found
            say(table(found))
    section.begin("")


main = console_script(PROGRAM, build_parser, run)

if __name__ == "__main__":
    sys.exit(main())
