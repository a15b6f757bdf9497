"""Command line ``python -m luna_fairseq.benchmark``: run the benchmarks and print their tables."""

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any, Dict, List, Set, Type

import torch

from luna_fairseq.benchmark.attention import CausalAttention, PackAndUnpack
from luna_fairseq.benchmark.forms import CHOICES, force_forms
from luna_fairseq.benchmark.measure import compare, profile
from luna_fairseq.benchmark.page import (
    describe_environment,
    format_measurements,
    format_table,
    write_json,
    write_png,
)
from luna_fairseq.benchmark.task import Section, Task, plan_jobs
from luna_fairseq.commands.arguments import HelpFormatter, Number, positive
from luna_fairseq.commands.plots import check_plot
from luna_fairseq.commands.reporting import console_script, offer_quiet
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import check_separate, check_writable
from luna_fairseq.progress import progress, say

PROGRAM = "python -m luna_fairseq.benchmark"
DESCRIPTION = """Measure the speed and memory of Luna beside other models and attentions.

Without a task, all tasks run. The rows of a table take turns, and every row is measured several times. Every
figure is the median, followed by its quartiles in brackets. A column "/ peer" shows how many times faster the
row is than the peer.

Results are printed and written as soon as they are measured."""
EXAMPLE = f"example:\n  {PROGRAM} train --batch 8x512 --json train.json"
TASKS: Dict[str, Type[Task]] = {"causal": CausalAttention, "attention": PackAndUnpack}
# The tasks on whole models need fairseq.
if importlib.util.find_spec("fairseq") is not None:
    from luna_fairseq.benchmark.apollo import OptimizerStep
    from luna_fairseq.benchmark.decode import Decode
    from luna_fairseq.benchmark.freed_memory import keep_freed_memory
    from luna_fairseq.benchmark.train import LongRangeArena, Train

    TASKS.update(train=Train, lra=LongRangeArena, decode=Decode, apollo=OptimizerStep)
COMMON = {"repetitions": 7, "threads": torch.get_num_threads(), "seed": 1}


def _common_options(force_dest: str) -> argparse.ArgumentParser:
    """Build a parser with the options shared by all benchmarks, for ``parents=`` of other parsers.

    The options have no defaults, because these would overwrite values given before the benchmark's name. For
    the same reason ``--force``, which may be repeated, has another ``dest`` there.
    """
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    add = common.add_argument
    for name, default in COMMON.items():
        # Quartiles need at least two repetitions.
        kind = Number(int, least=2) if name == "repetitions" else positive
        text = "random seed" if name == "seed" else f"number of {name}"
        add(f"--{name}", type=kind, metavar="N", help=f"{text} (default: {default})")
    add("--device", help="device to measure: cpu, cuda or cuda:N (default: cpu)")
    add("--json", type=Path, metavar="FILE", help="write the results to a JSON file")
    add("--plot", type=Path, metavar="FILE", help="plot the results to a PNG file")
    add("--profile", action="store_true", help="also print operations, calls and, on a CPU, memory per row")
    add("--check", action="store_true", help="only check the results of the rows, without measurements")
    force = "take this form of an operation wherever possible; may be repeated"
    add("--force", dest=force_dest, action="append", choices=CHOICES, metavar="OPERATION=FORM", help=force)
    offer_quiet(common)
    return common


def build_parser() -> argparse.ArgumentParser:
    """Build the command-line parser. Common options may come before or after the task name."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=HelpFormatter,
        parents=[_common_options("force_first")],
    )
    commands = parser.add_subparsers(dest="command", metavar="{" + ",".join(TASKS) + "}")
    names: Dict[str, Any] = dict(nargs="+", action="extend", default=[], metavar="ROW")
    for name, task in TASKS.items():
        sub_command = commands.add_parser(
            name,
            help=task.paragraphs()[0],
            description=task.notes,
            epilog=f"example:\n  {PROGRAM} {name} {task.example}",
            formatter_class=HelpFormatter,
            parents=[_common_options("force")],
        )
        for option, arguments in task.options.items():
            sub_command.add_argument(option, **arguments)
        sub_command.add_argument("--with", dest="with_", help="also measure these optional rows", **names)
        sub_command.add_argument("--without", help="do not measure these rows", **names)
    flags = {"profile": False, "check": False, "quiet": False}
    parser.set_defaults(device="cpu", force_first=[], force=[], json=None, plot=None, **flags, **COMMON)
    return parser


def run(args: argparse.Namespace) -> None:
    """Run the chosen benchmarks, and print, save and plot their results.

    Raise InputError after all measurements if an implementation failed or gave wrong results, or if no call
    used a form of ``--force``.
    """
    if args.json is not None:
        check_writable(args.json, "--json")
    if args.plot is not None:
        check_separate(args.plot, "--plot", filter(None, [args.json]))
        check_plot(args.plot, "--plot")
    try:
        device = torch.empty(0, device=args.device).device
    except (RuntimeError, AssertionError) as error:
        message = str(error).splitlines()[0]
        raise InputError(f"--device {args.device}: {message}. Use cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        # torch's Timer synchronises the current device only.
        torch.cuda.set_device(device)
    torch.set_num_threads(args.threads)
    if args.device == "cpu" and "train" in TASKS:
        keep_freed_memory()
    description = describe_environment(args)
    print("\n".join(f"{name}: {value}" for name, value in description.items()), flush=True)
    sections: List[Section] = []
    used: Set[str] = set()  # forced forms that a call has used

    def write() -> None:
        if args.json is not None:
            values = {s.name: {k: v for k, v in vars(s).items() if k != "changed"} for s in sections}
            write_json(args.json, {"environment": description, **values})

    for name in [args.command] if args.command else TASKS:
        options = {**vars(build_parser().parse_args([name])), **vars(args), "command": name}
        task = TASKS[name](argparse.Namespace(**options))
        sections.append(Section(name, task.rate, changed=write))
        with force_forms(description["force"]) as chosen:
            measure(task, sections[-1])
        used.update(f"{operation}={form}" for operation, forms in chosen.items() for form in forms)
    measured = [section for section in sections if section.results]
    if args.plot is not None and measured:
        write_png(args.plot, measured, description)
    failed = [f"{row} was not measured: {why}" for s in sections for row, why in s.failed.items()]
    failed += [
        f"{name} was never used: no row has supported inputs and leaves the form of this operation open. "
        "Choose other rows or sizes, or leave --force out"
        for name in description["force"]
        if name not in used
    ]
    if failed:
        raise InputError("; ".join(failed))


def measure(task: Task, section: Section) -> None:
    """Measure every case of a benchmark, such as a sequence length, and print a table after each case.

    The measurements are added to ``section``. With ``--check``, nothing is measured. Instead, the largest
    error of each implementation is printed, divided by the tolerance, or "-" if nothing was compared.
    """
    cases = plan_jobs(task, section)
    print("", f"== {section.name} ==", *section.notes, "", sep="\n", flush=True)
    if task.args.check:
        errors = {row: "-" if error is None else error for row, error in section.checks.items()}
        say(format_table([{"row": row, "error / tolerance": error} for row, error in errors.items()]))
        cases = []
    for case, jobs in progress(cases, section.name, "cases"):
        before = len(section.results)
        compare(case, jobs, section, task.args)
        records = section.results[before:]
        if records:
            say(format_measurements(records, task.rate, section.peers))
        if task.args.profile:
            profiles = [profile(jobs[record["form"]](), record, task.args.device) for record in records]
            section.profiles += profiles
            say(format_table(profiles))
    section.set_running("")


main = console_script(PROGRAM, build_parser, run)

if __name__ == "__main__":
    sys.exit(main())
