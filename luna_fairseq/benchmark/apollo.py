"""Task ``apollo``: one step of the Apollo optimizer beside torch's AdamW."""

from argparse import Namespace
from functools import partial
from typing import List, Sequence

import torch
from torch import Tensor

from luna_fairseq.benchmark.models import MODELS, ModelTask
from luna_fairseq.benchmark.task import Case, Job, Row, Task, require_equal
from luna_fairseq.optim.apollo import Apollo

STEPS = 3
SMALL = [torch.Size(shape) for shape in ((33, 7), (5,), (2, 3, 4))]
# Learning rate that hardly changes the parameters.
RATE = 1e-6
OPTIMIZERS = {
    "adamw": Row(partial(torch.optim.AdamW, foreach=False), peer=True),
    "adamw-foreach": Row(partial(torch.optim.AdamW, foreach=True), equals="adamw", peer=True),
    "adamw-fused": Row(partial(torch.optim.AdamW, fused=True), equals="adamw", peer=True),
    "apollo-single": Row(partial(Apollo, foreach=False)),
    "apollo-foreach": Row(partial(Apollo, foreach=True), equals="apollo-single"),
    "apollo": Row(Apollo, equals="apollo-single"),
}


class OptimizerStep(Task):
    """Task ``apollo``: one optimizer step on the parameters of fairseq's Transformer."""

    notes = """one optimizer step: Apollo beside torch's AdamW, on the parameters of fairseq's Transformer
    with random gradients that stay the same; float32. Apollo and AdamW (weight decay 0.01)
    with torch's defaults for the rest. adamw and apollo-single go through the parameters one by one, foreach
    takes many in one operation, fused is torch's one kernel for all, apollo is the default: foreach on a GPU,
    blocks on a CPU. Extra memory is that of the first step: the optimizer's state and what else it needs at a
    time. Before anything is timed, parameters after three steps were compared between all forms of each."""
    table = OPTIMIZERS
    options = {name: ModelTask.options[name] for name in ("--preset", "--dictionary-size")}

    def __init__(self, args: Namespace):
        super().__init__(args)
        models = ModelTask(Namespace(**vars(args), dtype="float32"))
        models.task = "translate"
        self.shapes = [p.shape for p in models.make_model(MODELS["transformer"], 1).parameters()]

    def cases(self) -> List[Case]:
        return [{"parameters": f"{sum(shape.numel() for shape in self.shapes):,}"}]

    def why_not(self, row: Row, case: Case) -> str:
        try:
            row.make(self.parameters(SMALL), lr=RATE).step()
        except (RuntimeError, TypeError) as error:
            return str(error).splitlines()[0]
        return ""

    def job(self, row: Row, case: Case) -> Job:
        return row.make(self.parameters(self.shapes), lr=RATE).step

    def check(self, row: Row) -> float:
        if not row.equals:
            return 0.0
        what = f"after {STEPS} steps the change of its parameters differs from {row.equals}'s"
        return require_equal(what, *map(self.change_after_steps, (row, OPTIMIZERS[row.equals])))

    def change_after_steps(self, row: Row) -> Tensor:
        """Return the change of small parameters after several steps with different gradients, as one vector.

        Args:
            row: row of the table.
        """
        values = self.parameters(SMALL)
        before = [p.detach().clone() for p in values]
        # With a smaller learning rate, rounding errors would dominate the change.
        optimizer = row.make(values, lr=1e-3)
        for i in range(STEPS):
            for p, other in zip(values, self.parameters(SMALL, i)):
                p.grad = other.grad
            optimizer.step()
        return torch.cat([(p.detach() - b).flatten() for p, b in zip(values, before)])

    def parameters(self, shapes: Sequence[torch.Size], more: int = 0) -> List[Tensor]:
        """Create random parameters with random gradients.

        Args:
            shapes: shapes of the parameters.
            more: number to add to the random seed (default: 0).
        """
        device = self.args.device
        generator, parameters = torch.Generator(device).manual_seed(self.args.seed + more), []
        for shape in shapes:
            value, gradient = (torch.randn(shape, device=device, generator=generator) for _ in range(2))
            parameters.append((0.02 * value).requires_grad_())
            parameters[-1].grad = 0.01 * gradient
        return parameters
