"""``python -m luna_fairseq.benchmark.kernels``: what the compiler makes of the kernels of causal attention,
and the bytes that they move, without a GPU.

The Triton form runs forward and backward on meta tensors under a driver that has a compute capability and
no device. So every launch is compiled as for such a GPU; what it moves are the tensors that it reads or
writes.
"""

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple
from unittest import mock

import torch

from luna_fairseq.benchmark.gpus import GPUS, Gpu, occupancy
from luna_fairseq.benchmark.page import table, write_json
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.modules import luna_causal_attention
from luna_fairseq.ops.causal_luna import triton as form

PROGRAM = "python -m luna_fairseq.benchmark.kernels"
HEADS = 32
# T, K, l; the most important first.
SHAPES = [(4096, K, L) for K in (64, 128) for L in (16, 32, 64, 128)] + [(30, 64, 16)]
# Of the roofline: T; K and l.
LENGTHS, WIDTH, ROWS = (1024, 4096, 16384), 64, 16


class Launch(NamedTuple):
    """A kernel, what was compiled, and the bytes of the tensors that it reads or writes."""

    name: str
    compiled: Any
    bytes: int


class Driver:
    """What Triton asks of a driver before it launches: a device for each capability, and no stream."""

    def __init__(self, capability: int):
        from triton.backends.compiler import GPUTarget

        self.get_current_target = lambda: GPUTarget("cuda", capability, 32)
        self.get_current_device = lambda: capability
        self.get_current_stream = lambda device: 0


@contextmanager
def launching_nothing(capability: int, compiling: bool) -> Iterator[List[Launch]]:
    """Within it kernels are noted, or compiled for a capability, where they would be launched, and ``auto``
    takes them wherever they suit: there is nothing to time."""
    from triton import JITFunction
    from triton.runtime import driver

    launches: List[Launch] = []
    run = JITFunction.run

    def note(self: Any, *args: Any, warmup: bool, **options: Any) -> None:
        compiled = run(self, *args, warmup=True, **options) if compiling else None
        text = compiled.asm["ttir"] if compiled is not None else self.src
        given = {name: x for name, x in zip(self.arg_names, args) if isinstance(x, torch.Tensor)}
        # One tensor may stand for several arguments: v for k, or anything for what there is none of.
        used = {id(x): x for name, x in given.items() if len(re.findall(rf"\b{name}\b(?!\")", text)) > 1}
        moved = sum(x.numel() * x.element_size() for x in used.values())
        launches.append(Launch(self.__name__, compiled, moved))

    def choose(*arguments: Any) -> str:
        return "chunk" if form.why_not_triton(*arguments[:4]) else "triton"

    with ExitStack() as stack:
        stack.callback(driver.set_active, driver._active)
        driver.set_active(Driver(capability))
        for place, name, instead in (
            (JITFunction, "run", note),
            (form, "why_not_triton_here", lambda device: ""),
            (luna_causal_attention, "check_triton", lambda: None),
            (sys.modules[form.__package__ or ""], "choose_backend", choose),
        ):
            stack.enter_context(mock.patch.object(place, name, instead))
        yield launches


def launches_of(
    T: int, K: int, L: int, dtype: str, sm: int, decay: bool = False, masks: bool = False, tied: bool = False
) -> List[Launch]:
    """All launches of a forward and a backward pass of HEADS heads with dropout, for a GPU of capability
    ``sm``, as 80. ``decay``: attention forgets; ``masks``: positions and rows of P are padded; ``tied``: keys
    are values."""
    with torch.device("meta"):
        q, k, v = (torch.empty(1, HEADS, T, K, dtype=getattr(torch, dtype)) for _ in range(3))
        weights, log_decay = torch.empty(1, HEADS, T, L), torch.empty(HEADS)
        rows, positions = (torch.empty(1, n, dtype=torch.bool) if masks else None for n in (L, T))
    for x in (q, k, v, weights, log_decay):
        x.requires_grad_()
    inputs = q, k, k if tied else v, weights, rows, positions, 0.1, log_decay if decay else None
    with launching_nothing(sm, compiling=True) as launches:
        form.triton_causal_luna(*inputs).sum().backward()
    return launches


def usage(cubin: bytes) -> Tuple[int, int]:
    """Registers of a thread, and bytes that it keeps in memory for want of more, by NVIDIA's cuobjdump."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool) if tool.exists() else "cuobjdump", "-res-usage", file.name]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing of registers: {said[:200]}")
    return int(found[1]), int(found[2])


def resources(T: int, K: int, L: int, dtype: str, decay: bool, sm: int) -> List[Dict[str, Any]]:
    """A row for every launch, in their order."""
    gpu, rows = next(gpu for gpu in GPUS.values() if gpu.capability == sm), []
    for launch in launches_of(T, K, L, dtype, sm, decay):
        registers, spilled = usage(launch.compiled.asm["cubin"])
        warps, shared = launch.compiled.metadata.num_warps, launch.compiled.metadata.shared
        programs, limit = occupancy(gpu, registers, shared, warps)
        rows.append({
            "T": T, "K": K, "l": L, "dtype": dtype, "decay": decay, "sm": sm, "kernel": launch.name,
            "warps": warps, "registers": registers, "spilled": spilled, "shared": shared,
            "bytes": launch.bytes, "programs": programs, "limit": limit,
        })  # fmt: skip
    return rows


def roofline(T: int, dtype: str, gpu: Gpu) -> Dict[str, Any]:
    """The least milliseconds, forward and backward, on a GPU: of the bytes that the kernels move; of those
    that the algorithm must move with keys tied to values (q, k, the keys of pack attention and the output,
    the three again with the output's gradient, and the gradients of the three); and of fused causal softmax
    attention (seven products of T x T / 2)."""
    numbers = HEADS * T * WIDTH * torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    launches = launches_of(T, WIDTH, ROWS, dtype, gpu.capability, tied=True)
    moved, least = sum(launch.bytes for launch in launches), 11 * numbers
    flash = max(7 * HEADS * T * T * WIDTH / gpu.flops["half"], 12 * numbers / gpu.bandwidth)
    return {
        "T": T, "gpu": gpu.name, "launches": len(launches), "kernels_bytes": moved, "least_bytes": least,
        "kernels_ms": 1e3 * moved / gpu.bandwidth, "least_ms": 1e3 * least / gpu.bandwidth,
        "flash_ms": 1e3 * flash,
    }  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=(__doc__ or "").split("\n\n", 1)[-1])
    add = parser.add_argument
    add("--shape", type=int, nargs=3, action="append", metavar=("T", "K", "L"), help="(default: nine)")
    add("--dtype", nargs="+", default=["bfloat16"], choices=["bfloat16", "float16", "float32"])
    add("--capability", type=int, nargs="+", default=[80, 90], choices=[80, 90], metavar="N", help="80, 90")
    add("--decay", action="store_true", help="attention that forgets as well")
    add("--json", type=Path, metavar="FILE", help="write the same to FILE, as rows come")
    return parser


def run(args: argparse.Namespace) -> None:
    """Print the table of every shape as it comes, then the roofline."""
    # Decides, at the kernels' import, what their decorator makes of them.
    os.environ.pop("TRITON_INTERPRET", None)
    found: Dict[str, List[Dict[str, Any]]] = {"resources": [], "roofline": []}

    def note(kind: str, rows: List[Dict[str, Any]]) -> None:
        found[kind] += rows
        print(table(rows), flush=True)
        if args.json:
            write_json(args.json, found)

    decays = (False, True) if args.decay else (False,)
    for shape, *kind in itertools.product(args.shape or SHAPES, args.dtype, decays, args.capability):
        note("resources", resources(*shape, *kind))
    gpus = [gpu for gpu in GPUS.values() if gpu.capability in args.capability]
    note("roofline", [roofline(T, args.dtype[0], gpu) for T in LENGTHS for gpu in gpus])


main = console_script(PROGRAM, build_parser, run)

if __name__ == "__main__":
    sys.exit(main())
