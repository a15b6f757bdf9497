"""A resumed run with --amp keeps its loss scale (--fp16 and --bf16: tests/optim/test_fairseq_apollo.py)."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch

import luna_fairseq.engine  # noqa: F401  changes fairseq
from fairseq.optim import AMPOptimizer


def build():
    """Return a weight and the optimizer that --amp builds for it."""
    weight = torch.nn.Parameter(torch.ones(()))
    sgd = SimpleNamespace(optimizer=torch.optim.SGD([weight], lr=0.1))
    common = SimpleNamespace(fp16_init_scale=4, min_loss_scale=1e-4)
    return weight, AMPOptimizer(SimpleNamespace(optimizer=None, common=common), [weight], sgd)


def build_scaling():
    """Return the same with a loss scale that grows after three updates, also without a GPU."""
    weight, optimizer = build()
    optimizer._grad_scaler = torch.amp.GradScaler("cpu", init_scale=4, growth_interval=3)
    return weight, optimizer


def update(weight, optimizer):
    optimizer.optimizer.zero_grad()
    optimizer.backward(weight * 2)
    optimizer.scaler.step(optimizer.optimizer)
    optimizer.scaler.update()


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="this torch scales losses on GPUs only")
def test_a_resumed_run_has_the_loss_scale_of_an_uninterrupted_run():
    straight, resumed = build_scaling(), build_scaling()
    for number in range(7):
        if number == 4:
            resumed[1].load_state_dict(deepcopy(straight[1].state_dict()))
        update(*straight)
    for _ in range(3):
        update(*resumed)
    assert straight[1].scaler.get_scale() == 16
    assert straight[1].scaler.state_dict() == resumed[1].scaler.state_dict()


def test_older_checkpoints_and_runs_without_a_gpu_load():
    _, optimizer = build()
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    del state["grad_scaler"]
    optimizer.load_state_dict(state)
