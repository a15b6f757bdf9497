"""``apollo``: one step of the Apollo optimizer beside torch's AdamW, on the parameters of fairseq's
Transformer."""

import argparse
from functools import partial
from typing import Any, Dict, List, Sequence, Tuple

import torch
from torch import Tensor

from luna_fairseq.benchmark.measure import Case, Job
from luna_fairseq.benchmark.models import MODELS, ModelTask
from luna_fairseq.benchmark.task import BatchSize, Row, require_equal
from luna_fairseq.optim.apollo import Apollo

STEPS = 3
SMALL = [(33, 7), (5,), (2, 3, 4)]
# Small enough to leave the parameters where they are.
RATE = 1e-6
OPTIMIZERS = {
    "adamw": Row(partial(torch.optim.AdamW, foreach=False), peer=True),
    "adamw-foreach": Row(partial(torch.optim.AdamW, foreach=True), equals="adamw", peer=True),
    "adamw-fused": Row(partial(torch.optim.AdamW, fused=True), equals="adamw", peer=True),
    "apollo-single": Row(partial(Apollo, foreach=False)),
    "apollo-foreach": Row(partial(Apollo, foreach=True), equals="apollo-single"),
    "apollo": Row(Apollo, equals="apollo-single"),
}


class OptimizerStep(ModelTask):
    """``apollo``."""

    name = "apollo"
    task = "translate"
    notes = """one optimizer step: Apollo beside torch's AdamW, on the parameters of fairseq's Transformer
    with random gradients that stay the same; float32. Apollo and AdamW (weight decay 0.01)
    with torch's defaults for the rest. adamw and apollo-single go through the parameters one by one, foreach
    takes many in one operation, fused is torch's one kernel for all, apollo is the default: foreach on a GPU,
    blocks on a CPU. Extra memory is that of the first step: the optimizer's state and what else it needs at a
    time. Before anything is timed, parameters after three steps were compared between the forms of each
    optimizer.
    """
    length = ""

    def __init__(self, args: argparse.Namespace, settings: Any):
        super().__init__(args, settings)
        model = self.make_model(MODELS["transformer"], BatchSize(1, 1))
        self.shapes: List[Tuple[int, ...]] = [tuple(p.shape) for p in model.parameters()]

    def rows(self) -> Dict[str, Row]:  # type: ignore[override]
        return OPTIMIZERS

    def cases(self) -> List[Case]:
        return [{"parameters": f"{sum(torch.Size(shape).numel() for shape in self.shapes):,}"}]

    def why_not(self, row: Row, case: Case) -> str:  # type: ignore[override]
        try:
            self.optimizer(row, SMALL).step()
        except (RuntimeError, TypeError) as error:
            return str(error).splitlines()[0]
        return ""

    def optimizer(self, row: Row, shapes: Sequence[Tuple[int, ...]]) -> torch.optim.Optimizer:
        """Of random parameters of these shapes."""
        return row.make(parameters(shapes, self.settings.device, self.settings.seed), lr=RATE)

    def job(self, row: Row, case: Case) -> Job:
        return self.optimizer(row, self.shapes).step

    def check(self, row: Row) -> float:
        if not row.equals:
            return 0.0
        changes = [self.change_after_steps(r) for r in (row, OPTIMIZERS[row.equals])]
        what = f"after {STEPS} steps the change of its parameters differs from {row.equals}'s"
        return require_equal(what, *changes)

    def change_after_steps(self, row: Row) -> Tensor:
        """What some steps change, with other gradients in each, as one vector."""
        device, seed = self.settings.device, self.settings.seed
        values = parameters(SMALL, device, seed)
        before = [p.detach().clone() for p in values]
        optimizer = row.make(values, lr=1e-3)  # with less, rounding would be what is compared
        for i in range(STEPS):
            for p, other in zip(values, parameters(SMALL, device, seed + i)):
                p.grad = other.grad
            optimizer.step()
        return torch.cat([(p.detach() - b).flatten() for p, b in zip(values, before)])

    def describe(self) -> str:
        return f"transformer, {self.args.preset}: {len(self.shapes)} tensors"


def parameters(shapes: Sequence[Tuple[int, ...]], device: str, seed: int) -> List[Tensor]:
    """Random parameters with random gradients."""
    generator = torch.Generator(device).manual_seed(seed)
    made = []
    for shape in shapes:
        parameter, gradient = (torch.empty(shape, device=device) for _ in range(2))
        parameter.normal_(std=0.02, generator=generator).requires_grad_()
        parameter.grad = gradient.normal_(std=0.01, generator=generator)
        made.append(parameter)
    return made
