"""What the makers say of the GPUs: operations and bytes a second, memory, and what an SM has to share out."""

from dataclasses import dataclass
from typing import Dict, NamedTuple, Optional

from luna_fairseq.errors import InputError

GB, TERA = 1e9, 1e12
KIB, GIB = 2**10, 2**30
WARP = 32
# An SM hands registers to a warp in portions, and shared memory to a program with some of its own.
REGISTER_PORTION, SHARED_PORTION, SHARED_RESERVED = 256, 128, KIB


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU, by the datasheet of its SXM form.

    Attributes:
        capability: NVIDIA's compute capability
        memory: bytes
        bandwidth: of the memory, bytes a second
        flops: dense operations a second by the type of the operands: ``float32``, ``tf32`` and ``half``
        half: the type of 16 bits that it multiplies at that rate
        sms, registers, shared, shared_per_program, warps: its multiprocessors; of each the 32-bit registers,
            bytes of shared memory, the most that one program takes of them, and warps
        link: bytes a second that a GPU sends to the others of its node
        network: bytes a second that a node sends to others, all its GPUs together
    """

    name: str
    capability: int
    memory: float
    bandwidth: float
    flops: Dict[str, float]
    half: str
    sms: int
    shared: int
    shared_per_program: int
    link: float
    network: float
    registers: int = 65536
    warps: int = 64


def _hopper(name: str, memory: float, bandwidth: float) -> Gpu:
    flops = {"float32": 67 * TERA, "tf32": 495 * TERA, "half": 989 * TERA}
    return Gpu(name, 90, memory, bandwidth, flops, "bfloat16", 132, 228 * KIB, 227 * KIB, 450 * GB, 400 * GB)


GPUS: Dict[str, Gpu] = {
    "v100": Gpu(
        "V100 32 GB", 70, 32 * GIB, 900 * GB,
        {"float32": 15.7 * TERA, "tf32": 15.7 * TERA, "half": 125 * TERA},
        "float16", 80, 96 * KIB, 96 * KIB, 150 * GB, 12.5 * GB,
    ),
    "a100": Gpu(
        "A100 80 GB", 80, 80 * GIB, 2039 * GB,
        {"float32": 19.5 * TERA, "tf32": 156 * TERA, "half": 312 * TERA},
        "bfloat16", 108, 164 * KIB, 163 * KIB, 300 * GB, 200 * GB,
    ),
    "h100": _hopper("H100 80 GB", 80 * GIB, 3350 * GB),
    "h200": _hopper("H200 141 GB", 141 * GB, 4800 * GB),
    # Two cores of an AMD EPYC, which the model is compared with. Operations as Luna's recorded training step
    # of 1,024 tokens reached them, bytes as a copy did.
    "cpu": Gpu(
        "2 CPU cores", 0, 15 * GIB, 20 * GB, {"float32": 150 * GB, "tf32": 150 * GB, "half": 150 * GB},
        "float32", 2, 0, 0, 1 * GB, 1 * GB,
    ),
}  # fmt: skip


def find_gpu(name: str) -> Gpu:
    """The GPU of a name.

    Raises:
        InputError: there is none; the message has those there are
    """
    if name.lower() not in GPUS:
        raise InputError(f"--gpu {name} is not known; known are {', '.join(GPUS)}")
    return GPUS[name.lower()]


def like(device_name: str) -> Optional[Gpu]:
    """The GPU that torch calls so, as ``NVIDIA H100 80GB HBM3``; None for one that is not listed."""
    return next((gpu for name, gpu in GPUS.items() if name in device_name.lower().replace("-", " ")), None)


class Occupancy(NamedTuple):
    """How many programs an SM holds at once.

    Attributes:
        programs: of one kernel
        share: of its warps that they make
        limit: what runs out first: ``registers``, ``shared memory`` or ``warps``
    """

    programs: int
    share: float
    limit: str


def occupancy(gpu: Gpu, registers: int, shared: int, warps: int) -> Occupancy:
    """Of programs of so many warps with so many registers a thread and bytes of shared memory."""
    by_warp = _up(registers * WARP, REGISTER_PORTION)
    possible = {
        "registers": gpu.registers // (by_warp * warps),
        "shared memory": gpu.shared // _up(shared + SHARED_RESERVED, SHARED_PORTION),
        "warps": gpu.warps // warps,
    }
    limit = min(possible, key=lambda what: possible[what])
    return Occupancy(possible[limit], possible[limit] * warps / gpu.warps, limit)


def _up(value: int, portion: int) -> int:
    return -(-value // portion) * portion
