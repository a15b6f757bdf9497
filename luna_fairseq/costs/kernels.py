"""The Triton kernels of causal attention on paper: what a program keeps in registers and shared memory, and
what a call reads and writes, by their tiles."""

from typing import Any, Dict, List, NamedTuple, Tuple

FLOAT = 4
THREADS = 32
# Of a thread, for addresses, masks and loop counters.
OVERHEAD = 40
MOST_REGISTERS = 255
KERNELS = ("segment_sums_kernel", "forward_kernel", "query_gradient_kernel", "key_gradient_kernel")


class Estimate(NamedTuple):
    """What a program takes.

    Attributes:
        registers: of a thread, as many as would hold all that is alive at once
        spilled: of them, those beyond what a thread can have
        shared: bytes: the operands of one product, and the buffers of loads that run ahead
    """

    registers: int
    spilled: int
    shared: int


def on_paper(kernel: str, plan: Any, itemsize: int) -> Estimate:
    """What a kernel should take.

    Args:
        kernel: one of ``KERNELS``
        plan: blocks, warps and stages, as ``make_plan`` of the Triton form gives them
        itemsize: bytes of a number of the inputs
    """
    alive, loaded = tiles(kernel, plan, itemsize)
    registers = OVERHEAD + sum(alive.values()) // (FLOAT * THREADS * plan.warps)
    ahead = (plan.stages - 1) * sum(loaded)
    # A float32 product's operands change their layout through shared memory, one of them at a time.
    t, k, rows = plan.block_t, plan.block_k, plan.block_l
    operand = FLOAT * max(t * k, t * t, k * rows if plan.carry or plan.segments > 1 else 0)
    return Estimate(registers, max(0, registers - MOST_REGISTERS), ahead + operand)


def tiles(kernel: str, plan: Any, itemsize: int) -> Tuple[Dict[str, int], List[int]]:
    """Bytes of what is alive in the inner loop, by name, and of what is loaded for each chunk."""
    t, k, rows = plan.block_t, plan.block_k, plan.block_l
    of_input, of_output = itemsize * t * k, FLOAT * t * k
    square, weights, state = FLOAT * t * t, FLOAT * t * rows, FLOAT * k * rows
    states = 2 if plan.carry else 1
    if kernel == "segment_sums_kernel":
        return {"k, v": 2 * of_input, "a": weights, "sums": 2 * state}, [of_input, of_input, weights]
    if kernel == "forward_kernel":
        alive = {"q, k, v": 3 * of_input, "scores, mixed": 2 * square, "y": of_output}
        alive.update({"a, logits, weights": 3 * weights, "states": states * state})
        return alive, [of_input] * 3 + [weights]
    alive = {"q, k, v, g": 4 * of_input}
    if kernel == "query_gradient_kernel":
        alive.update({"scores, value scores, mixed": 3 * square, "y": of_output})
        alive.update({"a, logits, dweights, d, w": 5 * weights, "states, sums": 2 * states * state})
        return alive, [of_input] * 4 + [weights]
    alive.update({"scores, value scores, two mixed": 4 * square, "y_k, y_v": 2 * of_output})
    alive.update({"a, d, w, y_a": 4 * weights, "sums": states * state})
    return alive, [of_input] * 4 + [weights] * 3


def traffic(plan: Any, heads: int, T: int, K: int, L: int, itemsize: int) -> Dict[str, int]:
    """Bytes that each kernel moves in a forward and backward pass of ``heads`` heads, in the order of their
    launch; the L1 and L2 caches serve nothing twice."""
    inputs, weights = itemsize * heads * T * K, FLOAT * heads * T * L
    states = FLOAT * heads * plan.segments * 2 * K * L if plan.segments > 1 else 0
    return {
        "segment_sums_kernel": (2 * inputs + weights + states) if states else 0,
        "exclusive_scan_kernel": 2 * states,
        "forward_kernel": 4 * inputs + weights + states,
        "query_gradient_kernel": 5 * inputs + 3 * weights + 2 * states,
        "reverse exclusive_scan_kernel": 2 * states,
        "key_gradient_kernel": 6 * inputs + 4 * weights + states,
    }
