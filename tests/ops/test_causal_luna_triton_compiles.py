"""Compile the Triton kernels for the compute capabilities 8.0 and 9.0. No GPU is needed."""

import os
import re

import pytest
from compiled_kernels import GPUS, compile_launches, occupancy, register_usage

from luna_fairseq.ops.causal_luna import triton as form

triton = pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3 or later")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"
)
# Capability 8.6 and 8.9 give a program 99 KiB, less than 8.0 (163) and 9.0 (227).
SHARED_MEMORY = 99 * 1024
# Of a thread, where three programs of 4 warps share the 65,536 of a multiprocessor.
REGISTERS = 168
# Cases in which a kernel spills some bytes of a thread. All others spill nothing.
SPILLED = {
    (4096, 64, 32, dtype, capability, decay): 8
    for dtype in ("float16", "bfloat16")
    for capability, decay in ((80, True), (90, False))
}
WORST = (4096, 64, 16, "float16", 80, True)
MATRIX = [
    (4096, K, L, dtype, capability, decay)
    for K in (64, 128)
    for L in (16, 32, 64, 128)
    for dtype in ("float16", "bfloat16")
    for capability in (80, 90)
    for decay in (False, True)
]

# One case of each size, which .ci/run compiles.
GUARDS = [case for case in MATRIX if case[3:] == ("float16", 80, True)]


@pytest.mark.parametrize(
    "T, K, L, dtype, capability, decay",
    [
        WORST,
        *(
            pytest.param(*case, marks=[pytest.mark.slow, *([pytest.mark.guard] if case in GUARDS else [])])
            for case in MATRIX
            if case != WORST
        ),
        *(
            pytest.param(30, 64, 16, "float16", capability, True, marks=pytest.mark.slow)
            for capability in (80, 90)
        ),
    ],
)
def test_hardly_anything_is_spilled_and_three_programs_fit(T, K, L, dtype, capability, decay):
    launches = compile_launches(T, K, L, dtype, capability, decay)
    assert len(launches) == (4 if T > 32 else 3)
    for launch in launches:
        registers, spilled = register_usage(launch.compiled.asm["cubin"])
        shared, warps = launch.compiled.metadata.shared, launch.compiled.metadata.num_warps
        allowed = SPILLED.get((T, K, L, dtype, capability, decay), 0)
        assert spilled <= allowed and shared <= SHARED_MEMORY, (launch.name, registers, spilled, shared)
        if K == 64 and L <= 32 and T > 32:
            assert registers <= REGISTERS and warps == 4 and 3 * shared <= SHARED_MEMORY, launch.name


@pytest.mark.parametrize("T", [7, 1000])
def test_both_sides_survive_the_compiler(T):
    """A loop over two sides carries the values of both.

    Triton 3.6 and 3.9 drop one of two variables that change places in a loop if both begin with the same
    constant. The interpreter does not.
    """
    (launch,) = (
        x for x in compile_launches(T, 64, 16, "float32", 90, False) if x.name == "query_gradient_kernel"
    )
    sides = re.findall(r"%c0_i32 to %c2_i32 .*?iter_args\((.*?)\) ->", launch.compiled.asm["ttgir"])
    assert sides and {side.count("=") for side in sides} == {2}


@pytest.mark.parametrize("L", [16, 40])
def test_one_segment_of_several_chunks(L, monkeypatch):
    """Many heads keep a GPU busy, so there is one segment, and no kernel sums over segments."""
    monkeypatch.setattr(form, "PROGRAMS", 1)
    launches = compile_launches(100, 64, L, "bfloat16", 80, decay=True, tied=True)
    assert len(launches) == 3 and all(
        register_usage(launch.compiled.asm["cubin"])[1] == 0 for launch in launches
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("tied", [False, True])
def test_masks_float32_and_tied_keys_compile(dtype, tied):
    for launch in compile_launches(4096, 128, 256, dtype, 80, decay=True, masks=True, tied=tied):
        assert launch.compiled.metadata.shared <= SHARED_MEMORY, launch.name


@pytest.mark.slow
def test_bytes_are_at_most_one_and_a_half_times_the_least():
    """The case has tied keys and values, 32 heads of width 64, and packed length 16.

    The forward and backward pass together take at most four launches.
    """
    launches = compile_launches(4096, 64, 16, "bfloat16", 80, tied=True)
    assert len(launches) == 4
    assert sum(launch.bytes for launch in launches) <= 1.5 * 11 * 32 * 4096 * 64 * 2


@pytest.mark.parametrize(
    "registers, shared, warps, programs, limit",
    [(255, 0, 4, 2, "registers"), (32, 50 * 1024, 4, 3, "shared memory"), (24, 0, 8, 8, "warps")],
)
def test_occupancy_of_an_a100(registers, shared, warps, programs, limit):
    assert occupancy(GPUS[80], registers, shared, warps) == (programs, limit)
