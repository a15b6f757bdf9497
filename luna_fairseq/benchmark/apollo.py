"""``apollo``: one step of the Apollo optimizer beside torch's AdamW, on the parameters of fairseq's
Transformer.
"""

import argparse
import copy
from typing import Any, Dict, List, Sequence, Tuple

import torch
from torch import Tensor

from fairseq.models.transformer import TransformerModel, base_architecture
from luna_fairseq.benchmark.equality import relative_rms, require_equal
from luna_fairseq.benchmark.measure import Case, Job, Settings
from luna_fairseq.benchmark.models import (
    TRANSLATION_PRESETS,
    ModelTask,
    add_size_options,
    translation_options,
    translation_task,
)
from luna_fairseq.benchmark.peers import OPTIMIZERS, Optimizer
from luna_fairseq.benchmark.task import Task

STEPS = 3
# Small enough to leave the parameters where they are.
RATE = 1e-6
Sizes = Sequence[Tuple[int, ...]]


class OptimizerStep(Task):
    """``apollo``."""

    name = "apollo"
    help = "one optimizer step: Apollo beside torch's AdamW, on the parameters of fairseq's Transformer"
    notes = """
    optimizer.step() with random gradients that stay the same; float32. Apollo and AdamW (weight decay 0.01)
    with torch's defaults for the rest. adamw and apollo-single go through the parameters one by one, foreach
    takes many in one operation, fused is torch's one kernel for all, apollo is the default: foreach on a GPU,
    blocks on a CPU. Extra memory is that of the first step: the optimizer's state and what else it needs at a
    time. Before anything is timed, parameters after three steps were compared between the forms of each
    optimizer.
    """

    def __init__(self, args: argparse.Namespace, settings: Settings):
        super().__init__(args, settings)
        options = argparse.Namespace(**translation_options(TRANSLATION_PRESETS[args.preset or "base"], 1024))
        base_architecture(options)
        self.dictionary_size = args.dictionary_size or ModelTask.default_dictionary_size
        model = TransformerModel.build_model(options, translation_task(self.dictionary_size))
        self.shapes: Sizes = [tuple(p.shape) for p in model.parameters()]
        self.size = sum(p.numel() for p in model.parameters())

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        add_size_options(parser)

    def rows(self) -> Dict[str, Optimizer]:
        return OPTIMIZERS

    def cases(self) -> List[Case]:
        return [{"parameters": f"{self.size:,}"}]

    def why_not(self, row: Optimizer, case: Case) -> str:
        tiny, _ = self.tiny(case)
        try:
            tiny.build(row, case).step()
        except (RuntimeError, TypeError) as error:
            return str(error).splitlines()[0]
        return ""

    def build(self, row: Optimizer, case: Case) -> torch.optim.Optimizer:
        return row.make(parameters(self.shapes, self.settings.device, self.settings.seed), lr=RATE)

    def step(self, row: Optimizer, built: Any, case: Case) -> Job:
        return built.step

    def tiny(self, case: Case) -> Tuple["OptimizerStep", Case]:
        small = copy.copy(self)
        small.shapes = [(2, 3)]
        return small, case

    def check(self, rows: Dict[str, Optimizer]) -> None:
        """Two forms of one optimizer must lead to the same parameters."""
        for name, row in rows.items():
            if row.equals is not None:
                pair = (self.change_after_steps(r) for r in (row, OPTIMIZERS[row.equals]))
                what = f"after {STEPS} steps the change of its parameters differs from {row.equals}'s"
                require_equal(name, what, relative_rms(*pair))

    def change_after_steps(self, row: Optimizer) -> Tensor:
        """What some steps change, with other gradients in each, as one vector."""
        shapes, device, seed = [(33, 7), (5,), (2, 3, 4)], self.settings.device, self.settings.seed
        values = parameters(shapes, device, seed)
        before = [p.detach().clone() for p in values]
        optimizer = row.make(values, lr=1e-3)  # with less, rounding would be what is compared
        for i in range(STEPS):
            for p, other in zip(values, parameters(shapes, device, seed + i)):
                p.grad = other.grad
            optimizer.step()
        return torch.cat([(p.detach() - b).flatten() for p, b in zip(values, before)])

    def describe(self) -> str:
        preset = self.args.preset or "base"
        return f"transformer, {preset}, dictionary {self.dictionary_size}: {len(self.shapes)} tensors"


def parameters(shapes: Sizes, device: str, seed: int) -> List[Tensor]:
    """Random parameters with random gradients."""
    generator = torch.Generator(device).manual_seed(seed)
    made = []
    for shape in shapes:
        parameter, gradient = (torch.empty(shape, device=device) for _ in range(2))
        parameter.normal_(std=0.02, generator=generator).requires_grad_()
        parameter.grad = gradient.normal_(std=0.01, generator=generator)
        made.append(parameter)
    return made
