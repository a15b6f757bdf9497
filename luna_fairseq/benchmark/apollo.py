"""Benchmark ``apollo``: one step of the optimizers Apollo and AdamW."""

from argparse import Namespace
from functools import partial
from typing import List, Optional, Sequence

import torch
from torch import Tensor

from luna_fairseq.benchmark.models import MODELS, ModelTask
from luna_fairseq.benchmark.task import Case, Job, Task, Variant, require_equal
from luna_fairseq.optim.apollo import Apollo

STEPS = 3
SMALL = [torch.Size(shape) for shape in ((33, 7), (5,), (2, 3, 4))]
# Learning rate that hardly changes the parameters.
RATE = 1e-6
OPTIMIZERS = {
    "adamw": Variant(partial(torch.optim.AdamW, foreach=False), peer=True),
    "adamw-foreach": Variant(partial(torch.optim.AdamW, foreach=True), equals="adamw", peer=True),
    "adamw-fused": Variant(partial(torch.optim.AdamW, fused=True), equals="adamw", peer=True),
    "apollo-single": Variant(partial(Apollo, foreach=False)),
    "apollo-foreach": Variant(partial(Apollo, foreach=True), equals="apollo-single"),
    "apollo": Variant(Apollo, equals="apollo-single"),
}


class OptimizerStep(Task):
    """Benchmark "apollo", which measures one optimizer step on the parameters of fairseq's Transformer."""

    notes = """Measure one step of the Apollo optimizer beside torch's AdamW.

    The parameters are those of fairseq's Transformer in float32, with constant random gradients. Both
    optimizers have their default settings.

    Rows: adamw and apollo-single update the parameters one by one. adamw-foreach and apollo-foreach update
    many parameters in each operation. adamw-fused is torch's fused kernel. apollo is the default of Apollo,
    which updates many parameters at once on a GPU and blocks of parameters on a CPU.

    The extra memory includes the state of the optimizer. Before anything is timed, the parameters after three
    steps are compared between the rows of each optimizer."""
    example = "--preset small"
    table = OPTIMIZERS
    options = {name: ModelTask.options[name] for name in ("--preset", "--dictionary-size")}

    def __init__(self, args: Namespace):
        super().__init__(args)
        models = ModelTask(Namespace(**vars(args), dtype="float32"))
        models.task = "translate"
        self.shapes = [p.shape for p in models.make_model(MODELS["transformer"], 1).parameters()]

    def cases(self) -> List[Case]:
        return [{"parameters": f"{sum(shape.numel() for shape in self.shapes):,}"}]

    def skip_reason(self, variant: Variant, case: Case) -> str:
        """Return why an optimizer cannot run on the device or with this version of torch, or "" if it can."""
        try:
            variant.make(self.parameters(SMALL), lr=RATE).step()
        except (RuntimeError, TypeError) as error:
            return str(error).splitlines()[0]
        return ""

    def prepare_job(self, variant: Variant, case: Case) -> Job:
        return variant.make(self.parameters(self.shapes), lr=RATE).step

    def check(self, variant: Variant) -> Optional[float]:
        """Return the error of an optimizer's updates against a reference, divided by the tolerance."""
        if not variant.equals:
            return None
        what = f"after {STEPS} steps the change of its parameters differs from that of {variant.equals}"
        return require_equal(what, *map(self.change_after_steps, (variant, OPTIMIZERS[variant.equals])))

    def change_after_steps(self, variant: Variant) -> Tensor:
        """Run an optimizer for three steps on small parameters, and return their total change as one vector.

        The gradients differ from step to step, but all optimizers get the same parameters and gradients.
        """
        values = self.parameters(SMALL)
        before = [p.detach().clone() for p in values]
        # With a smaller learning rate, rounding errors would dominate the change.
        optimizer = variant.make(values, lr=1e-3)
        for i in range(STEPS):
            for p, other in zip(values, self.parameters(SMALL, i)):
                p.grad = other.grad
            optimizer.step()
        return torch.cat([(p.detach() - b).flatten() for p, b in zip(values, before)])

    def parameters(self, shapes: Sequence[torch.Size], seed_offset: int = 0) -> List[Tensor]:
        """Create random parameters of the given shapes, with random gradients."""
        device = self.args.device
        generator, parameters = torch.Generator(device).manual_seed(self.args.seed + seed_offset), []
        for shape in shapes:
            value, gradient = (torch.randn(shape, device=device, generator=generator) for _ in range(2))
            parameters.append((0.02 * value).requires_grad_())
            parameters[-1].grad = 0.01 * gradient
        return parameters
