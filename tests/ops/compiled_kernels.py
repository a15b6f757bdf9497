"""Compile the Triton kernels of causal Luna attention without a GPU.

Run as a program, this file prints the registers, spilled bytes and shared memory of each kernel. It also
prints a lower bound on the time, computed from the bytes that the kernels move::

    python tests/ops/compiled_kernels.py --capability 80 --shape 4096 64 16

The forward and backward pass run on meta tensors. A replacement of Triton's driver names a compute
capability, but has no device. Every kernel is compiled for that capability, and nothing is executed.
"""

import argparse
import itertools
import math
import os
import re
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple
from unittest import mock

import torch

from luna_fairseq.benchmark.page import format_table
from luna_fairseq.ops.causal_luna import triton as form

HEADS = 32
# T, K, l
SHAPES = [(4096, K, L) for K in (64, 128) for L in (16, 32, 64, 128)] + [(30, 64, 16)]
# Lengths, head width and packed length of the bound
LENGTHS, WIDTH, ROWS = (1024, 4096, 16384), 64, 16
KIB, GB, TERA = 2**10, 1e9, 1e12
# Of a multiprocessor: 32-bit registers, and warps of 32 threads
REGISTERS, WARPS, WARP = 65536, 64, 32
# Registers are allocated to a warp, and shared memory to a program, in multiples of these. Every program also
# takes some shared memory for the system.
REGISTER_UNIT, SHARED_UNIT, SHARED_RESERVED = 256, 128, KIB


class Gpu(NamedTuple):
    """Datasheet values of a GPU.

    Attributes:
        name: name of the GPU.
        bandwidth: bytes of memory traffic per second.
        half_flops: operations per second in bfloat16 or float16.
        shared: bytes of shared memory of a multiprocessor.
    """

    name: str
    bandwidth: float
    half_flops: float
    shared: int


# By compute capability
GPUS = {
    80: Gpu("A100 80 GB", 2039 * GB, 312 * TERA, 164 * KIB),
    90: Gpu("H100 80 GB", 3350 * GB, 989 * TERA, 228 * KIB),
}


class Launch(NamedTuple):
    """Recorded launch of a kernel.

    Attributes:
        name: name of the kernel.
        compiled: Triton's compiled kernel.
        bytes: size of the tensors that the kernel reads or writes.
    """

    name: str
    compiled: Any
    bytes: int


class Driver:
    """Replacement of Triton's driver that names a compute capability and has no device."""

    def __init__(self, capability: int):
        from triton.backends.compiler import GPUTarget

        self.get_current_target = lambda: GPUTarget("cuda", capability, 32)
        self.get_current_device = lambda: capability
        self.get_current_stream = lambda device: 0


@contextmanager
def record_launches(capability: int) -> Iterator[List[Launch]]:
    """Compile kernels instead of launching them, and record the launches.

    Args:
        capability: compute capability, such as 80.

    Yields:
        The list of launches, which grows while the context is active.
    """
    from triton import JITFunction
    from triton.runtime import driver

    launches: List[Launch] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, warmup: bool, **options: Any) -> None:
        compiled = run(self, *args, warmup=True, **options)
        text = compiled.asm["ttir"]
        given = {name: x for name, x in zip(self.arg_names, args) if isinstance(x, torch.Tensor)}
        # One tensor may be given for several arguments: v for k, or any tensor for an argument without one.
        used = {id(x): x for name, x in given.items() if len(re.findall(rf"\b{name}\b(?!\")", text)) > 1}
        moved = sum(x.numel() * x.element_size() for x in used.values())
        launches.append(Launch(self.__name__, compiled, moved))

    active = driver._active
    driver.set_active(Driver(capability))
    try:
        with mock.patch.object(JITFunction, "run", compile_only):
            with mock.patch.object(form, "why_not_triton_here", lambda device: ""):
                yield launches
    finally:
        driver.set_active(active)


def compile_launches(
    T: int,
    K: int,
    L: int,
    dtype: str,
    capability: int,
    decay: bool = False,
    masks: bool = False,
    tied: bool = False,
) -> List[Launch]:
    """Compile a forward and a backward pass with dropout and ``HEADS`` heads.

    Args:
        T: sequence length.
        K: head width.
        L: packed length, the number of rows of the packed sequence P.
        dtype: name of the dtype of queries, keys and values.
        capability: compute capability, such as 80.
        decay: True if earlier positions decay (default: False).
        masks: True to pass a mask of positions and a mask of rows of P (default: False).
        tied: True if keys and values are the same tensor (default: False).

    Returns:
        All launches in their order.
    """
    with torch.device("meta"):
        q, k, v = (torch.empty(1, HEADS, T, K, dtype=getattr(torch, dtype)) for _ in range(3))
        weights, log_decay = torch.empty(1, HEADS, T, L), torch.empty(HEADS)
        rows, positions = (torch.empty(1, n, dtype=torch.bool) if masks else None for n in (L, T))
    for x in (q, k, v, weights, log_decay):
        x.requires_grad_()
    inputs = q, k, k if tied else v, weights, rows, positions, 0.1, log_decay if decay else None
    with record_launches(capability) as launches:
        form.triton_causal_luna(*inputs).sum().backward()
    return launches


def register_usage(cubin: bytes) -> Tuple[int, int]:
    """Return the number of registers and of spilled bytes of a thread, as NVIDIA's cuobjdump reports them.

    Args:
        cubin: compiled kernel.

    Returns:
        Number of registers, and number of bytes that are spilled to memory.
    """
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool) if tool.exists() else "cuobjdump", "-res-usage", file.name]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", output)
    if found is None:
        raise RuntimeError(f"cuobjdump reports no registers: {output[:200]}")
    return int(found[1]), int(found[2])


def occupancy(gpu: Gpu, registers: int, shared: int, warps: int) -> Tuple[int, str]:
    """Return how many programs of a kernel fit on a multiprocessor, and which resource limits them.

    Args:
        gpu: datasheet values of the GPU.
        registers: number of registers of a thread.
        shared: bytes of shared memory of a program.
        warps: number of warps of a program.

    Returns:
        Number of programs, and "registers", "shared memory" or "warps".
    """
    warp_registers = math.ceil(registers * WARP / REGISTER_UNIT) * REGISTER_UNIT
    program_memory = math.ceil((shared + SHARED_RESERVED) / SHARED_UNIT) * SHARED_UNIT
    possible = {
        REGISTERS // (warp_registers * warps): "registers",
        gpu.shared // program_memory: "shared memory",
        WARPS // warps: "warps",
    }
    return min(possible), possible[min(possible)]


def kernel_resources(
    T: int, K: int, L: int, dtype: str, decay: bool, capability: int
) -> List[Dict[str, Any]]:
    """Compile a forward and a backward pass, and return the resources of each kernel as table rows.

    The arguments are those of :func:`compile_launches`.
    """
    lines = []
    for launch in compile_launches(T, K, L, dtype, capability, decay):
        registers, spilled = register_usage(launch.compiled.asm["cubin"])
        warps, shared = launch.compiled.metadata.num_warps, launch.compiled.metadata.shared
        programs, limit = occupancy(GPUS[capability], registers, shared, warps)
        lines.append({
            "T": T, "K": K, "l": L, "dtype": dtype, "decay": decay, "sm": capability, "kernel": launch.name,
            "warps": warps, "registers": registers, "spilled": spilled, "shared": shared,
            "bytes": launch.bytes, "programs": programs, "limit": limit,
        })  # fmt: skip
    return lines


def time_bounds(T: int, dtype: str, capability: int) -> Dict[str, Any]:
    """Return lower bounds on the milliseconds of a forward and a backward pass with tied keys and values.

    Args:
        T: sequence length.
        dtype: name of the dtype of queries, keys and values.
        capability: compute capability, such as 80.

    Returns:
        Table row with three bounds. ``kernels_ms`` counts the bytes that the kernels move. ``least_ms``
        counts the
        bytes that the algorithm has to move: q, k, the keys of pack attention and the output in the forward
            pass;
        the same inputs, the gradient of the output and the gradients of the inputs in the backward pass.
        ``flash_ms`` is the bound of fused causal softmax attention, with seven products of T x T / 2.
    """
    gpu = GPUS[capability]
    size = HEADS * T * WIDTH * torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    launches = compile_launches(T, WIDTH, ROWS, dtype, capability, tied=True)
    moved, least = sum(launch.bytes for launch in launches), 11 * size
    flash = max(7 * HEADS * T * T * WIDTH / gpu.half_flops, 12 * size / gpu.bandwidth)
    return {
        "T": T, "gpu": gpu.name, "launches": len(launches), "kernels_bytes": moved, "least_bytes": least,
        "kernels_ms": 1e3 * moved / gpu.bandwidth, "least_ms": 1e3 * least / gpu.bandwidth,
        "flash_ms": 1e3 * flash,
    }  # fmt: skip


def main() -> None:
    """Print the resources of each kernel and shape, then the bounds on the time."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--shape", type=int, nargs=3, action="append", metavar=("T", "K", "L"), help="(default: nine)")
    add("--dtype", nargs="+", default=["bfloat16"], choices=["bfloat16", "float16", "float32"])
    add("--capability", type=int, nargs="+", default=list(GPUS), choices=list(GPUS), metavar="N")
    add("--decay", action="store_true", help="also compile attention that forgets")
    args = parser.parse_args()
    decays = (False, True) if args.decay else (False,)
    for shape, *kind in itertools.product(args.shape or SHAPES, args.dtype, decays, args.capability):
        print(format_table(kernel_resources(*shape, *kind)), flush=True)
    bounds = [time_bounds(T, args.dtype[0], capability) for T in LENGTHS for capability in args.capability]
    print(format_table(bounds))


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)  # read when a kernel is first used
    main()
