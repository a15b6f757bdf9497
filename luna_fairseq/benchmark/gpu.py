"""Command ``python -m luna_fairseq.benchmark.gpu``: check and measure Luna on a GPU within minutes.

Each part of the run is a benchmark command in a separate process. If a part fails, hangs or makes the GPU
unusable, the error is reported. The part then runs again without the implementation that caused the error.
The files gpu.json and gpu.md are updated after each part.

With --device cpu, smaller parts run on a CPU, with the kernels in Triton's interpreter.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import torch

from luna_fairseq.benchmark.page import format_measurements, format_table, write_json
from luna_fairseq.commands.arguments import CommandParser, Number
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import check_writable, write_text

PROGRAM = "python -m luna_fairseq.benchmark.gpu"
BENCHMARK = "luna_fairseq.benchmark"
# A part is started only if this number of seconds remains, because a process needs some time to import torch.
LEAST = 5.0
# Maximum number of attempts per part. Each attempt excludes the row that ended the previous attempt.
TRIES = 3

SETS = {
    "forms": "--without cumsum sdpa --with decay-naive decay-triton",
    "plain": "--without luna-16-untied luna-16-anchored",
    "both": "--with luna-16-chunk luna-16-triton --without luna-16-untied luna-16-anchored transformer",
    "tiny": "--batch 1 --heads 2 --head-dim 16 --projection-length 8",
    "small": "--preset small --dictionary-size 40 --repetitions 2",
}
# For each part, its time limit in seconds and the arguments of ``python -m luna_fairseq.benchmark``. The most
# important parts come first; the first five take three minutes. {half} is bfloat16, or float16 on a GPU that
# does not support bfloat16.
ON_GPU = {
    "parity": (60, "causal --check --tied --dtype {half} --lengths 30 1024 4096 {forms}"),
    "causal": (40, "causal --tied --dtype {half} --lengths 1024 4096 16384 --repetitions 5"),
    "train": (60, "train --dtype {half} --batch 16x1024 4x4096 1x16384 --repetitions 3 {both}"),
    "decode": (40, "decode --dtype {half} --batch 32 --lengths 30 --repetitions 2 {plain}"),
    "lra": (60, "lra --dtype {half} --batch 8x1024 8x2048 8x3072 8x4096 --repetitions 2 "
            "--without luna-16-anchored luna-128-anchored luna-256-anchored"),
    "parity-odd": (60, "causal --check --masks --dtype {half} --lengths 1 2 31 33 65 1000 --head-dim 40 "
                   "--projection-length 5 33 128 {forms}"),
    "parity-float32": (60, "causal --check --masks --lengths 1 31 1000 16384 --projection-length 16 100 "
                       "{forms}"),
    "parity-float16": (60, "causal --check --dtype float16 --lengths 257 4097 --head-dim 128 "
                       "--projection-length 16 256 {forms}"),
    "causal-l": (60, "causal --tied --dtype {half} --projection-length 32 64 128 256 --lengths 4096 "
                 "--repetitions 3 --without cumsum --with decay-naive decay decay-triton"),
    "attention": (60, "attention --dtype {half} --lengths 1024 4096 16384 --repetitions 3 --without softmax"),
    "train-30": (60, "train --dtype {half} --batch 256x30 --repetitions 3 {both}"),
    "apollo": (60, "apollo --repetitions 3"),
    "masked-lm": (60, "train --task masked-lm --projection-length 128 --dtype {half} --batch 16x512 2x4096 "
                  "--repetitions 3"),
    "decode-250": (90, "decode --dtype {half} --batch 32 --lengths 250 --repetitions 2 {plain}"),
}  # fmt: skip
ON_CPU = {
    "parity": (120, "causal --check --tied --masks --lengths 33 {tiny} {forms}"),
    "causal": (120, "causal --tied --lengths 8 {tiny} --repetitions 2"),
    "train": (120, "train {small} --batch 1x8 {plain} transformer --with luna-16-chunk"),
    "decode": (120, "decode {small} --lengths 4 --beam 2 {plain}"),
    "lra": (120, "lra --batch 1x64 --projection-length 16 --repetitions 2 --without luna-16-anchored"),
}
# Comparisons at the top of the page: part, row and peer.
HEADLINES = [
    ("causal", "triton", "sdpa"),
    ("causal", "chunk", "sdpa"),
    ("train", "luna-16-tied", "transformer-sdpa"),
    ("decode", "luna-16-tied", "transformer"),
    ("lra", "luna-16", "transformer-softmax"),
]


def build_parser() -> argparse.ArgumentParser:
    """Build the command-line parser."""
    parser = CommandParser(PROGRAM, __doc__, example=f"{PROGRAM} --only parity causal --minutes 3")
    add = parser.add_argument
    add("--out", type=Path, default=Path("gpu"), metavar="DIR", help="folder to write to (default: gpu)")
    add(
        "--minutes",
        type=Number(float, above=0),
        default=9.0,
        metavar="N",
        help="time limit of the run (default: 9)",
    )
    add("--device", choices=["cuda", "cpu"], default="cuda", help="device to measure (default: cuda)")
    only = "run only these parts, such as parity causal train decode lra (default: all)"
    add("--only", nargs="+", default=[], metavar="PART", help=only)
    return parser


def run(args: argparse.Namespace) -> None:
    """Run the chosen benchmark commands on the device, and write their results to gpu.json and gpu.md.

    Skip commands beyond the time limit. Raise InputError at the end if a command failed, was skipped or gave
    wrong results.
    """
    parts = ON_CPU if args.device == "cpu" else ON_GPU
    if importlib.util.find_spec("fairseq") is None:
        print("fairseq is not installed: whole models are not measured", flush=True)
        without_fairseq = ("causal", "attention")
        parts = {name: part for name, part in parts.items() if part[1].split()[0] in without_fairseq}
    if args.device == "cuda" and torch.cuda.device_count() == 0:
        raise InputError("torch sees no GPU. Use --device cpu to run the same parts at small sizes")
    for name in args.only:
        if name not in parts:
            raise InputError(f"--only {name}: no part has this name. Choose from {', '.join(parts)}")
    args.out.mkdir(parents=True, exist_ok=True)
    check_writable(args.out / "gpu.json", "--out")
    major, _ = torch.cuda.get_device_capability() if args.device == "cuda" else (8, 0)
    half = "bfloat16" if major >= 8 else "float16"
    until = time.monotonic() + 60 * args.minutes
    results: Dict[str, Dict[str, Any]] = {}
    for name in args.only or parts:
        limit, text = parts[name]
        words = [*text.format(**SETS, half=half).split(), "--device", args.device]
        results[name] = run_part(words, limit, until)
        errors = (f"  FAILED {row}: {why}" for row, why in results[name]["failed"].items())
        print(name, *errors, sep="\n", flush=True)
        write_json(args.out / "gpu.json", results)
        write_text(args.out / "gpu.md", "\n".join(format_page(results)) + "\n")
    print(f"written: {args.out / 'gpu.md'}, {args.out / 'gpu.json'}")
    failed = [name for name, result in results.items() if result["failed"]]
    if failed:
        raise InputError(f"{', '.join(failed)} failed or gave wrong results. See {args.out / 'gpu.md'}")


def run_part(words: List[str], limit: float, until: float) -> Dict[str, Any]:
    """Run a benchmark command in a separate process. Retry without an implementation that crashes or hangs.

    Args:
        words: arguments of ``python -m luna_fairseq.benchmark``.
        limit: time limit of each attempt in seconds.
        until: time at which the whole run must end, in seconds of ``time.monotonic``.

    Returns:
        Dictionary with the following entries.

        - command: last command that ran.
        - failed: error message of each implementation, or of "all" if the whole command failed.
        - found: JSON output of the command, with the measurements of all attempts.
        - seconds: duration of all attempts.
    """
    failed: Dict[str, str] = {}
    values: Dict[str, Any] = {}
    measured: Dict[str, Any] = {}
    start = time.monotonic()
    for _ in range(TRIES):
        left = until - time.monotonic()
        if left < LEAST:
            failed.setdefault("all", "not measured: the time limit was reached")
            break
        found, error = run_benchmark([sys.executable, "-m", BENCHMARK, *words], min(limit, left))
        values, section = found or values, find_section(found)
        measured.update({f"{x['form']} {x['case']}": x for x in section.get("results", [])})
        failed.update(section.get("failed", {}))
        running = section.get("running", "")
        if not error or not running:
            failed.update({"all": error} if error and not section.get("failed") else {})
            break
        # The process died or hung, so the next attempt excludes the row being measured.
        failed[running] = error
        words = [*words, "--without", running]
    find_section(values)["results"] = list(measured.values())
    command = " ".join(["python -m", BENCHMARK, *words])
    return {"command": command, "failed": failed, "found": values, "seconds": time.monotonic() - start}


def run_benchmark(command: List[str], limit: float) -> Tuple[Dict[str, Any], str]:
    """Run a benchmark command in a separate process, for at most ``limit`` seconds.

    Return the command's JSON output, or {} if there is none, and an error message, or "" on success.
    """
    environment = dict(os.environ)
    if "cpu" in command:
        # Triton's interpreter computes small products, which several threads would only slow down.
        environment.update(TRITON_INTERPRET="1", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as folder:
        path, message = Path(folder) / "found.json", ""
        command = [*command, "--json", str(path)]
        try:
            subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=limit, check=True
            )
        except subprocess.TimeoutExpired:
            message = f"ended after {limit:.0f} s"
        except subprocess.CalledProcessError as error:
            raised = re.findall(r"^Traceback.*\n(?: .*\n)*(\S.*)", error.stderr, re.MULTILINE)
            signal, lines = -error.returncode, raised or error.stderr.strip().splitlines() or [str(error)]
            message = f"ended by signal {signal}" if signal > 0 else lines[-1]
        return json.loads(path.read_text()) if path.exists() else {}, message


def find_section(values: Dict[str, Any]) -> Dict[str, Any]:
    """Return the results of the only benchmark in the JSON output of a command, or {} if there are none."""
    return next((x for name, x in values.items() if name != "environment" and isinstance(x, dict)), {})


def format_page(results: Dict[str, Dict[str, Any]]) -> List[str]:
    """Return the lines of gpu.md. ``results`` maps the name of each part to the result of :func:`run_part`.

    The lines list the environment, the errors, the comparisons in ``HEADLINES``, and a table per part.
    """
    sections = {name: find_section(result["found"]) for name, result in results.items()}
    environments = (result["found"].get("environment") for result in results.values())
    description: Any = next(filter(None, environments), {})
    failed = [(name, *why) for name, result in results.items() for why in result["failed"].items()]
    errors = [error for section in sections.values() for error in section.get("checks", {}).values()]
    rows = []
    for name, row, peer in HEADLINES:
        for record in sections.get(name, {}).get("results", []):
            if record["form"] == row and peer in record["speed_ratio"]:
                case = ", ".join(f"{key} {value}" for key, value in record["case"].items())
                ratio = record["speed_ratio"][peer]["median"]
                rows.append({"task": name, "case": case, "row": row, "peer": peer, "times its speed": ratio})
    lines = ["# Measured on a GPU", "", *(f"- {name}: {value}" for name, value in description.items()), ""]
    equal = sum(error is not None for error in errors)
    lines += [f"{equal} rows are equal to their definitions; {len(failed)} failed.", ""]
    lines += [*(f"- FAILED {name}, {row}: {why}" for name, row, why in failed), "", format_table(rows)]
    for name, result in results.items():
        lines += [f"## {name}", "", f"`{result['command']}`, {result['seconds']:.0f} s", ""]
        section = sections[name]
        if section.get("results"):
            lines += [format_measurements(section["results"], section["rate"], section["peers"])]
    return lines


main = console_script(PROGRAM, build_parser, run)

if __name__ == "__main__":
    sys.exit(main())
