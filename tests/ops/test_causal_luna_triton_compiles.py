"""The Triton kernels compiled for compute capabilities 8.0 and 9.0, which needs no GPU."""

import os

import pytest
import torch

from luna_fairseq.ops.causal_luna import triton as form

triton = pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3 or later")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"),
]
# Capability 8.6 and 8.9 give a program 99 KiB, less than 8.0 (163) and 9.0 (227).
SHARED_MEMORY = 99 * 1024
FLOAT32 = {"a", "da", "d", "w", "states", "suffix", "reciprocal"}
POINTERS = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32"}


def argument_type(name, dtype):
    """The type that the launcher would find for an argument."""
    if name in ("padding", "packed_padding", "seed"):
        return "*i64" if name == "seed" else "*u8"
    if name in ("dropout", "boost", "scale"):
        return "fp32"
    if name in ("T", "H", "segments", "chunks") or name.endswith(("_b", "_h", "_t")):
        return "i32"
    return "*fp32" if name in FLOAT32 else POINTERS[dtype]


def compile_ahead(kernel, dtype, capability, constants, **options):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else argument_type(name, dtype) for name in names}
    constants = {name: value for name, value in constants.items() if name in names}
    # What the launcher finds of the tensors that torch allocates: addresses and strides are multiples of 16.
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if signature[name] in ("*fp16", "*bf16", "*fp32") or name.endswith(("_b", "_h", "_t"))
    }
    source = ASTSource(kernel, signature, constants, aligned)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options=options)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("T, K, L", [(4096, 64, 16), (30, 64, 16), (4096, 128, 256)])
def test_kernels_compile_and_fit(T, K, L, dtype, capability):
    from luna_fairseq.ops.causal_luna import triton_backward, triton_kernels

    q, mask = torch.empty(0, dtype=dtype), torch.empty(0)
    plan = form.make_plan(32, T, K, L, q.element_size())
    states = torch.empty(0) if plan.segments > 1 else None
    constants = {**form.blocks(plan, q), **form.flags(plan, q, states, (mask, mask, mask))}
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages")}
    constants.update(K=K, L=L, HAS_PACKED_PADDING=True, HAS_DROPOUT=True)
    for kernel in (
        triton_kernels.segment_sums_kernel,
        triton_kernels.forward_kernel,
        triton_backward.query_gradient_kernel,
        triton_backward.key_gradient_kernel,
    ):
        compiled = compile_ahead(kernel, dtype, capability, constants, **options)
        assert compiled.metadata.shared <= SHARED_MEMORY, kernel.__name__
        assert f"sm_{capability}" in compiled.asm["ptx"]


@pytest.mark.parametrize("reverse", [False, True])
def test_the_scan_compiles(reverse):
    from luna_fairseq.ops.causal_luna.triton_kernels import exclusive_scan_kernel

    constants = {"SIZE": 2048, "REVERSE": reverse, "BLOCK": form.SCAN_BLOCK}
    assert compile_ahead(exclusive_scan_kernel, torch.float32, 80, constants).asm["cubin"]
