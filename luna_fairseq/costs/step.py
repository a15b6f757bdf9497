"""Time of a training step: the roofline of each part at the shares of it that are usual, launches, optimizer,
and what DDP sends."""

from dataclasses import dataclass
from typing import Dict

from luna_fairseq.costs.attention import ITEMSIZE
from luna_fairseq.costs.gpus import Gpu
from luna_fairseq.costs.model import Batch, Model, parameters, step_work
from luna_fairseq.costs.roofline import RATES, Work

# Part of the datasheet's rates that training reaches on a GPU: assumed, not measured. A CPU's rates are those
# that it reached.
REACHED_OPERATIONS, REACHED_BYTES = 0.4, 0.75
# Attention's small products, and a fused softmax, reach less.
REACHED_ATTENTION = 0.35
# Seconds that Python and the launch of an operation take; operations of a layer, forward and backward.
LAUNCH = 15e-6
LAUNCHES = {(False, False): 70, (False, True): 120, (True, False): 100, (True, True): 180}
LAUNCHES_BESIDE = 60
# Bytes that an optimizer's step reads and writes for a parameter, beside its gradient and its half copy.
OPTIMIZER_BYTES = {"adam": 28, "apollo": 60}
# Part of the backward pass behind which gradients are sent.
HIDDEN = 0.5


@dataclass(frozen=True)
class Step:
    """Seconds of one update.

    Attributes:
        parts: of one forward and backward pass: ``layers``, ``attention``, ``output``
        launches: what the same pass takes where the GPU waits for Python
        optimizer: of the update
        network: of what is sent beyond what the backward pass hides
        passes: forward and backward passes of an update
    """

    parts: Dict[str, float]
    bounds: Dict[str, str]
    launches: float
    optimizer: float
    network: float
    passes: int

    @property
    def seconds(self) -> float:
        """Of the update."""
        return self.passes * max(sum(self.parts.values()), self.launches) + self.optimizer + self.network

    @property
    def bound(self) -> str:
        """What takes most of it, in words."""
        device = sum(self.parts.values())
        costs = {"the optimizer's bytes": self.optimizer, "the network": self.network}
        if self.launches > device:
            costs["launches"] = self.passes * self.launches
        else:
            for part, seconds in self.parts.items():
                costs[f"{self.bounds[part]} of the {part}"] = self.passes * seconds
        return max(costs, key=lambda what: costs[what])


def step(
    model: Model, batch: Batch, gpu: Gpu, dtype: str, optimizer: str, passes: int, nodes: int, gpus: int
) -> Step:
    """An update.

    Args:
        model: that is trained
        batch: of one GPU and one pass
        gpu: of which kind all are
        dtype: of the parameters in the model
        optimizer: adam or apollo
        passes: that are summed up before an update
        nodes: of ``gpus`` each
        gpus: of a node
    """
    parts, bounds = {}, {}
    for part, work in step_work(model, batch, dtype).items():
        parts[part], bounds[part] = seconds_of(part, work, gpu)
    launches = model.encoder.layers * LAUNCHES[model.luna, False]
    if model.decoder is not None:
        launches += model.decoder.layers * LAUNCHES[model.luna, True]
    count, item = parameters(model), ITEMSIZE[dtype]
    sent = communication(count * item, gpu, nodes, gpus)
    backward = sum(parts.values()) * 2 / 3
    share = 1.0 if gpu.capability == 0 else REACHED_BYTES
    return Step(
        parts,
        bounds,
        (launches + LAUNCHES_BESIDE) * LAUNCH,
        count * (OPTIMIZER_BYTES[optimizer] + 3 * item) / (share * gpu.bandwidth),
        max(0.0, sent - HIDDEN * backward),
        passes,
    )


def seconds_of(part: str, work: Work, gpu: Gpu) -> "tuple[float, str]":
    """Time of a part of a pass, and what bounds it."""
    of_flops, of_bytes = (REACHED_OPERATIONS, REACHED_BYTES) if gpu.capability else (1.0, 1.0)
    if part == "attention" and gpu.capability:
        of_flops = REACHED_ATTENTION
    operations = sum(n / gpu.flops[RATES[kind]] for kind, n in work.flops.items()) / of_flops
    moved = work.bytes / (of_bytes * gpu.bandwidth)
    # In layers, products and element-wise operations are kernels one after the other.
    seconds = max(operations, moved) if part == "attention" else operations + moved
    return seconds, "operations" if operations > moved else "bytes"


def communication(size: float, gpu: Gpu, nodes: int, gpus: int) -> float:
    """Seconds of a ring's all-reduce of ``size`` bytes: within the nodes, and between them."""
    within = 2 * (gpus - 1) / gpus * size / gpu.link
    return within + 2 * (nodes - 1) / nodes * size / gpu.network
