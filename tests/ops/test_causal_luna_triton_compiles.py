"""The Triton kernels compiled for compute capabilities 8.0 and 9.0, which needs no GPU."""

import os

import pytest

from luna_fairseq.benchmark.kernels import launches_of, usage
from luna_fairseq.ops.causal_luna import triton as form

triton = pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3 or later")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"),
]
# Capability 8.6 and 8.9 give a program 99 KiB, less than 8.0 (163) and 9.0 (227).
SHARED_MEMORY = 99 * 1024


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("T, K, L", [(4096, 64, 16), (30, 64, 16), (4096, 128, 256)])
@pytest.mark.parametrize("decay", [False, True])
def test_kernels_compile_and_fit(T, K, L, dtype, capability, decay):
    for launch in launches_of(T, K, L, dtype, capability, decay, masks=True):
        assert launch.compiled.metadata.shared <= SHARED_MEMORY, launch.name
        assert f"sm_{capability}" in launch.compiled.asm["ptx"]


@pytest.mark.parametrize("T, K, L, dtype", [(4096, 128, 16, "bfloat16"), (4096, 64, 16, "float32")])
def test_what_is_kept_in_memory_does_not_fit_into_registers(T, K, L, dtype):
    for launch in launches_of(T, K, L, dtype, 80):
        registers, spilled = usage(launch.compiled.asm["cubin"])
        assert not spilled or registers == form.MAX_REGISTERS, launch.name
