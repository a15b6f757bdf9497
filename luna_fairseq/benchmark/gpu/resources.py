"""What the compiler makes of the kernels: registers, spills, shared memory; compiled ahead, which needs no
GPU."""

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

import torch

from luna_fairseq.costs.gpus import GPUS, occupancy
from luna_fairseq.costs.kernels import KERNELS, on_paper

FLOAT32 = {"a", "da", "d", "w", "reads", "adds", "states", "suffix", "reciprocal"}
POINTERS = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32"}


class Build(NamedTuple):
    """A kernel of causal attention as it is compiled for T positions, width K, L rows of P, and a GPU."""

    kernel: str
    T: int
    K: int
    L: int
    dtype: str
    capability: int
    heads: int = 32
    dropout: bool = True
    masks: bool = False
    decay: bool = False

    def __str__(self) -> str:
        decay = ", decay" if self.decay else ""
        return f"{self.kernel}, T {self.T}, K {self.K}, l {self.L}, {self.dtype}, sm_{self.capability}{decay}"


SHAPES = [(4096, 64, 16), (4096, 64, 32), (4096, 64, 128), (4096, 128, 16), (30, 64, 16), (4096, 128, 256)]


def builds(capabilities: List[int], dtypes: List[str], small: bool) -> List[Build]:
    """All that are compiled, the most important first."""
    if small:
        return [Build("forward_kernel", *SHAPES[0], dtypes[0], capabilities[0])]
    plain = [
        Build(kernel, *shape, dtype, capability)
        for shape in SHAPES
        for dtype in dtypes
        for capability in capabilities
        for kernel in KERNELS
    ]
    return [*plain, *(build._replace(decay=True) for build in plain)]


def inspect(build: Build) -> Iterator[Dict[str, Any]]:
    """A row: what the kernel takes, how many programs an SM of each GPU holds, and the estimate."""
    from luna_fairseq.ops.causal_luna import triton as form

    start = time.perf_counter()
    dtype = getattr(torch, build.dtype)
    plan = form.make_plan(build.heads, build.T, build.K, build.L, torch.empty(0, dtype=dtype).element_size())
    compiled = compile_build(build)
    registers, stack = usage(compiled.asm["cubin"])
    shared = compiled.metadata.shared
    gpus = [name for name, gpu in GPUS.items() if gpu.capability == build.capability]
    paper = on_paper(build.kernel, plan, dtype.itemsize if hasattr(dtype, "itemsize") else 4)
    yield {
        **build._asdict(),
        "plan": plan._asdict(),
        "registers": registers,
        "spill_bytes": stack,
        "shared": shared,
        "paper": paper._asdict(),
        "occupancy": {
            name: occupancy(GPUS[name], max(registers, 1), shared, plan.warps)._asdict() for name in gpus
        },
        "seconds": time.perf_counter() - start,
    }


def compile_build(build: Build) -> Any:
    """Compile it as the launcher would."""
    # Decides, at its import, what the kernels' decorator makes of them.
    os.environ.pop("TRITON_INTERPRET", None)
    from luna_fairseq.ops.causal_luna import triton as form
    from luna_fairseq.ops.causal_luna import triton_backward, triton_kernels

    dtype = getattr(torch, build.dtype)
    q, mask = torch.empty(0, dtype=dtype), torch.empty(0)
    plan = form.make_plan(build.heads, build.T, build.K, build.L, q.element_size())
    states = torch.empty(0) if plan.segments > 1 else None
    given = form.Given(*[mask if build.decay else None] * 2, *[mask if build.masks else None] * 2)
    constants = {**form.blocks(plan, q), "K": build.K, "L": build.L, **form.time_flags(given)}
    if build.kernel != "segment_sums_kernel":
        constants.update(form.flags(plan, q, states, given))
        constants.update(HAS_PACKED_PADDING=build.masks, HAS_DROPOUT=build.dropout)
    options = {
        name: constants.pop(name) for name in ("num_warps", "num_stages", "maxnreg") if name in constants
    }
    kernel = getattr(triton_kernels, build.kernel, None) or getattr(triton_backward, build.kernel)
    return compile_ahead(kernel, dtype, build.capability, constants, **options)


def compile_ahead(
    kernel: Any, dtype: torch.dtype, capability: int, constants: Dict[str, Any], **options: Any
) -> Any:
    """Compile one of the kernels without launching it.

    Args:
        kernel: decorated with triton.jit
        dtype: of what is not always float32
        capability: of the GPU, as 80
        constants: values of its tl.constexpr arguments, and others that it does not have
        options: num_warps, num_stages, maxnreg
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else argument_type(name, dtype) for name in names}
    constants = {name: value for name, value in constants.items() if name in names}
    # What the launcher finds of the tensors that torch allocates: addresses and strides are multiples of 16.
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if signature[name] in ("*fp16", "*bf16", "*fp32", "*fp64") or name.endswith(("_b", "_h", "_t"))
    }
    source = ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def argument_type(name: str, dtype: torch.dtype) -> str:
    """The type that the launcher would find for an argument."""
    if name in ("padding", "packed_padding", "seed", "ages"):
        return {"seed": "*i64", "ages": "*fp64"}.get(name, "*u8")
    if name in ("dropout", "boost", "scale"):
        return "fp32"
    if name in ("T", "H", "segments", "chunks", "length") or name.endswith(("_b", "_h", "_t")):
        return "i32"
    return "*fp32" if name in FLOAT32 else POINTERS[dtype]


def usage(cubin: bytes) -> Tuple[int, int]:
    """Registers of a thread, and bytes that it keeps in memory for want of more, by NVIDIA's cuobjdump."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        program = str(tool) if tool.exists() else "cuobjdump"
        said = subprocess.run([program, "-res-usage", str(path)], check=True, capture_output=True, text=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", said.stdout)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing of registers: {said.stdout[:200]}")
    return int(found[1]), int(found[2])
