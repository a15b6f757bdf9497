"""The loss scale of --amp in updates and resumed runs (--fp16, --bf16: optim/test_fairseq_apollo.py)."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch

import luna_fairseq.engine  # noqa: F401  changes fairseq
from fairseq.optim import AMPOptimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig

needs_scaler = pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="this torch scales losses on GPUs only"
)


def build():
    """Return a weight and the optimizer that --amp builds for it."""
    weight = torch.nn.Parameter(torch.ones(()))
    options = FairseqAdamConfig(
        adam_betas="(0.9, 0.98)", adam_eps=1e-6, use_old_adam=True, tpu=False, lr=[0.1]
    )
    common = SimpleNamespace(fp16_init_scale=4, min_loss_scale=1e-4)
    cfg = SimpleNamespace(optimizer=options, common=common)
    return weight, AMPOptimizer(cfg, [weight], FairseqAdam(options, [weight]))


def build_scaling(scale=4):
    """Return the same with a loss scale that grows after three updates, also without a GPU."""
    weight, optimizer = build()
    optimizer._grad_scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)
    return weight, optimizer


def update(weight, optimizer, gradient=2.0):
    """Make one update, with the calls of fairseq's trainer."""
    optimizer.zero_grad()
    optimizer.backward(weight * gradient)
    optimizer.clip_grad_norm(0.0)
    optimizer.step()


@needs_scaler
def test_updates_do_not_depend_on_the_loss_scale():
    """Adam adds eps to the size of the gradients, so they must have been divided by the loss scale once."""
    weights = []
    for scale in (1, 2**15):
        weight, optimizer = build_scaling(scale)
        for _ in range(3):
            update(weight, optimizer, gradient=1e-4)
        assert weight.grad.item() == pytest.approx(1e-4)
        weights.append(weight.item())
    assert weights[0] == pytest.approx(weights[1]) and weights[0] < 0.75


@needs_scaler
def test_an_update_that_overflows_is_skipped():
    weight, optimizer = build_scaling()
    update(weight, optimizer, gradient=float("inf"))
    assert weight.item() == 1 and optimizer.scaler.get_scale() == 2


@needs_scaler
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
