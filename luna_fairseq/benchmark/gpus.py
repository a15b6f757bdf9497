"""What the makers say of the GPUs: operations and bytes a second, memory, and what an SM has to share out."""

import math
from typing import Dict, NamedTuple, Tuple

import torch

GB, TERA = 1e9, 1e12
KIB, GIB = 2**10, 2**30
# Of a multiprocessor: 32-bit registers, and warps of so many threads.
REGISTERS, WARPS, WARP = 65536, 64, 32
# An SM hands registers to a warp in portions, and shared memory to a program with some of its own.
REGISTER_PORTION, SHARED_PORTION, SHARED_RESERVED = 256, 128, KIB
# Fitted to the three public figures that docs/many_gpus.md names, all of V100.
REACHED = {"float32": 0.65, "half": 0.3, "bytes": 0.5}


class Gpu(NamedTuple):
    """A kind of GPU, by the datasheet of its SXM form: bytes of memory, bytes a second of memory, operations
    a second by type, its half type, bytes of shared memory of a multiprocessor, bytes a second to the other
    GPUs of its node (link) and of a node to others (network), and the part of ``flops`` (by type) and of
    ``bandwidth`` (``bytes``) that training reaches."""

    name: str
    capability: int
    memory: float
    bandwidth: float
    flops: Dict[str, float]
    half: torch.dtype
    shared: int
    link: float
    network: float
    reached: Dict[str, float] = REACHED


BF16, FP16 = torch.bfloat16, torch.float16
HOPPER = {"float32": 67 * TERA, "half": 989 * TERA}
GPUS: Dict[str, Gpu] = {
    "v100": Gpu("V100 32 GB", 70, 32 * GIB, 900 * GB, {"float32": 15.7 * TERA, "half": 125 * TERA},
                FP16, 96 * KIB, 150 * GB, 12.5 * GB),
    "a100": Gpu("A100 80 GB", 80, 80 * GIB, 2039 * GB, {"float32": 19.5 * TERA, "half": 312 * TERA},
                BF16, 164 * KIB, 300 * GB, 200 * GB),
    "h100": Gpu("H100 80 GB", 90, 80 * GIB, 3350 * GB, HOPPER, BF16, 228 * KIB, 450 * GB, 400 * GB),
    "h200": Gpu("H200 141 GB", 90, 141 * GB, 4800 * GB, HOPPER, BF16, 228 * KIB, 450 * GB, 400 * GB),
    # Two cores of an AMD EPYC, which the plan is compared with; rates as a product and a copy reached them.
    "cpu": Gpu("2 CPU cores", 0, 15 * GIB, 20 * GB, {"float32": 152 * GB, "half": 152 * GB},
               torch.float32, 0, GB, GB, {"float32": 1.0, "half": 1.0, "bytes": 1.0}),
}  # fmt: skip


def occupancy(gpu: Gpu, registers: int, shared: int, warps: int) -> Tuple[int, str]:
    """Programs of a kernel that a multiprocessor holds at once, and what runs out first: of so many warps,
    registers a thread and bytes of shared memory."""
    of_warp = math.ceil(registers * WARP / REGISTER_PORTION) * REGISTER_PORTION
    of_program = math.ceil((shared + SHARED_RESERVED) / SHARED_PORTION) * SHARED_PORTION
    possible = {
        REGISTERS // (of_warp * warps): "registers",
        gpu.shared // of_program: "shared memory",
        WARPS // warps: "warps",
    }
    return min(possible), possible[min(possible)]
