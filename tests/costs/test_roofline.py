"""Operations, bytes and occupancy on paper, against sums by hand."""

import pytest

from luna_fairseq.costs.attention import Heads, causal_luna, softmax
from luna_fairseq.costs.gpus import GPUS, find_gpu, occupancy
from luna_fairseq.costs.kernels import KERNELS, on_paper, traffic
from luna_fairseq.costs.roofline import Work, beside, bound
from luna_fairseq.errors import InputError
from luna_fairseq.ops.causal_luna.triton import make_plan


def test_the_longer_of_both_bounds():
    gpu = GPUS["a100"]
    of_bytes = bound(Work({"bfloat16": 312e12}, 4 * 2039e9), gpu)
    assert (of_bytes.seconds, of_bytes.by) == (4.0, "bytes")
    of_operations = bound(Work({"bfloat16": 312e12, "float32": 19.5e12}, 2039e9), gpu)
    assert (of_operations.seconds, of_operations.by) == (2.0, "operations")
    assert beside(Work({}, 2039e9), gpu, 4.0)["share"] == 0.25


def test_work_adds_and_multiplies():
    both = (Work({"bfloat16": 1.0}, 2.0) + Work({"float32": 3.0}, 4.0)) * 2
    assert both == Work({"bfloat16": 2.0, "float32": 6.0}, 12.0)


@pytest.mark.parametrize(
    "registers, shared, warps, programs, limit",
    [
        (255, 0, 4, 2, "registers"),  # 256 x 32 x 4 of 65,536
        (32, 50 * 1024, 4, 3, "shared memory"),  # 51 KiB of 164
        (24, 0, 8, 8, "warps"),
    ],
)
def test_occupancy_of_an_a100(registers, shared, warps, programs, limit):
    found = occupancy(GPUS["a100"], registers, shared, warps)
    assert (found.programs, found.share, found.limit) == (programs, programs * warps / 64, limit)


def test_softmax_is_quadratic_and_luna_linear():
    short, long = (Heads(8, T, 64, 16, "bfloat16") for T in (4096, 8192))
    for backward in (False, True):
        ours, theirs = causal_luna(short, backward, 32), softmax(short, backward, causal=True)
        assert causal_luna(long, backward, 32) == ours * 2
        more = softmax(long, backward, causal=True)
        assert more.flops["bfloat16"] == 4 * theirs.flops["bfloat16"] and more.bytes == 2 * theirs.bytes
    # Two products of T x T / 2 x 64, two operations each.
    assert softmax(short, False, True).flops["bfloat16"] == 8 * 2 * 4096 * 4096 * 64
    assert causal_luna(short, False, 32).bytes == 8 * 4096 * 64 * 2 * 5  # q, k, v, pack keys, output


def test_kernels_on_paper():
    plan = make_plan(32, 4096, 64, 16, 2)
    for kernel in KERNELS:
        found = on_paper(kernel, plan, 2)
        assert 40 < found.registers < 255 and found.spilled == 0 and 0 < found.shared < 99 * 1024
    wide = make_plan(32, 4096, 128, 256, 4)
    assert (
        on_paper("key_gradient_kernel", wide, 4).registers
        > on_paper("key_gradient_kernel", plan, 2).registers
    )
    moved = traffic(plan, 32, 4096, 64, 16, 2)
    assert moved["forward_kernel"] > 4 * 32 * 4096 * 64 * 2 and moved["segment_sums_kernel"] > 0
    assert traffic(make_plan(512, 30, 64, 16, 2), 512, 30, 64, 16, 2)["exclusive_scan_kernel"] == 0


def test_an_unknown_gpu_gets_one_line():
    assert find_gpu("H100") is GPUS["h100"]
    with pytest.raises(InputError, match="--gpu k80 is not known; known are v100, a100, h100, h200"):
        find_gpu("k80")
