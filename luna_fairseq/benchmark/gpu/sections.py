"""What is run, in which order: the most important first, since the time may end before the list does."""

import os
from functools import partial
from typing import Any, Dict, List

from luna_fairseq.benchmark.gpu import parity, resources
from luna_fairseq.benchmark.gpu.machine import describe, measured_gpu
from luna_fairseq.benchmark.gpu.supervise import Job, Section
from luna_fairseq.benchmark.gpu.timing import Timing

PARITY = """Relative RMS error of the Triton kernels against the chunkwise form in float64, 4 heads: the worst
of the output and of all gradients, by what each may be. Seconds include compiling."""
RESOURCES = """Of a thread and a program, as compiled for this GPU, with dropout; *spilled* are bytes of a
thread that found no register. In brackets: what the tiles let expect (`luna_fairseq/costs/kernels.py`)."""
# What compiles at once: each takes a core and some hundred MiB.
MOST_PROCESSES = 12


def machine(device: str, small: bool) -> Section:
    """What it is and what it reaches."""
    side, numbers = (256, 10**6) if small else (8192, 2 * 10**8)
    return Section(
        "machine", "Machine", "", [Job("machine", partial(describe, device, side, numbers))], seconds=90
    )


def kernels(device: str, machine: Dict[str, Any], small: bool, planted: bool) -> List[Section]:
    """Parity, and what the compiler makes of the kernels; nothing of both where they do not run."""
    why_not = no_kernels(machine)
    if why_not:
        return [Section("parity", "Parity of the kernels", f"Nothing was compared: {why_not}.", [])]
    cases = parity.cases(small, machine["half"])
    jobs = [Job(str(case), partial(parity.compare, case, device, planted)) for case in cases]
    processes = min(MOST_PROCESSES, max(1, (os.cpu_count() or 2) - 2))
    found = Section("parity", "Parity of the kernels", PARITY, jobs, processes, 180, 100)
    capabilities = [machine["capability"]] if machine["capability"] else [80, 90]
    builds = resources.builds(capabilities, [machine["half"], "float32"], small)
    jobs = [Job(str(build), partial(resources.inspect, build)) for build in builds]
    return [found, Section("resources", "Registers and shared memory", RESOURCES, jobs, processes, 100, 60)]


def no_kernels(machine: Dict[str, Any]) -> str:
    """Why the kernels do not run on a machine, or nothing."""
    if machine["triton"] == "none":
        return "there is no Triton"
    capability = machine["capability"]
    if capability is not None and capability < 80:
        return f"they need compute capability 8.0, and {machine['device']} has {capability / 10}"
    return ""


def timings(device: str, machine: Dict[str, Any], small: bool) -> List[Timing]:
    """The benchmark's tasks, the most important first."""
    gpu, half = measured_gpu(machine), machine["half"]

    def timing(name: str, title: str, words: str, repetitions: int = 5, seconds: float = 120.0) -> Timing:
        return Timing(name, title, words.split(), device, gpu, repetitions, seconds)

    if small:
        few = "--lengths 8 --batch 1 --heads 2 --without loop sdpa cumsum"
        return [timing("causal", "Causal attention", f"causal --tied {few}", 2)]
    to, rivals = f"--dtype {half}", "--without transformer luna-16-untied luna-16-anchored"
    lra = "--batch 8x1024 8x2048 8x3072 8x4096"
    return [
        timing("causal", "Causal attention",
               f"causal --tied {to} --lengths 1024 4096 16384 --without loop"),
        timing("train", "Training step, base size",
               f"train {to} --batch 16x1024 4x4096 1x16384 256x30 {rivals}", 4),
        timing("lra", "Long Range Arena's Text, Table 2", f"lra {to} {lra}", 3, 90),
        timing("decode", "Beam search", f"decode {to} --batch 32 --lengths 30 250 --without luna-16-untied "
               "luna-16-anchored", 2, 90),
        timing("causal-l", "Causal attention, more rows of P",
               f"causal --tied {to} --projection-length 32 64 128 256 --lengths 4096 --without loop cumsum",
               3),
        timing("attention", "Pack and unpack attention",
               f"attention {to} --lengths 1024 4096 16384 --without softmax", 3),
        timing("apollo", "Optimizer step", "apollo", 4, 60),
        timing("masked-lm", "Masked language models", f"train --task masked-lm --projection-length 128 {to} "
               "--batch 16x512 2x4096 --without luna-128-untied luna-128-anchored", 3),
        timing("decode-1000", "Beam search, long", f"decode {to} --batch 32 --lengths 1000 --without "
               "luna-16-untied luna-16-anchored", 2, 150),
    ]  # fmt: skip
