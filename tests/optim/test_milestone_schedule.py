"""Test the milestone schedule: the learning rate as a function of the update number, options and errors."""

import logging
import math

import golden
import pytest
import torch
from omegaconf import OmegaConf

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import build_optimizer
from fairseq.optim.lr_scheduler import build_lr_scheduler
from luna_fairseq.errors import InputError
from luna_fairseq.optim import (
    ApolloConfig,
    FairseqApollo,
    MilestoneSchedule,
    MilestoneScheduleConfig,
)


def parse(*words):
    """Build the schedule from a command line as fairseq does."""
    command = ["--task", "dummy_lm", "--arch", "transformer_lm", "--optimizer", "apollo"]
    command += ["--lr-scheduler", "milestone", *words]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command))
    return build_lr_scheduler(cfg.lr_scheduler, build_optimizer(cfg.optimizer, make_params()))


def make_params():
    return [torch.nn.Parameter(torch.zeros(2))]


def build(**fields):
    optimizer = FairseqApollo(OmegaConf.structured(ApolloConfig(amp=False, lr=[0.1])), make_params())
    cfg = OmegaConf.structured(MilestoneScheduleConfig(**{"lr": [0.1], **fields}))
    return MilestoneSchedule(cfg, optimizer)


STRAIGHT = {"warmup_updates": 10, "warmup_init_lr": 1e-5, "milestones": [20, 30]}
CASES = {
    "": STRAIGHT,
    "negative_init_lr": {"warmup_updates": 10, "milestones": [20, 30]},
    "no_warmup": {"warmup_updates": 0, "milestones": [20, 30]},
    "no_milestones": {"warmup_updates": 10, "warmup_init_lr": 1e-5},
    "milestones_inside_warmup": {**STRAIGHT, "milestones": [5, 10, 20]},
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_golden(case):
    vectors = golden.load("milestone")
    expected = vectors[case] if case else vectors
    scheduler = build(**CASES[case])
    assert scheduler.optimizer.get_lr() == pytest.approx(expected["initial_lr"], rel=1e-12, abs=0)
    for k, want in enumerate(expected["lr_after_update"], start=1):
        assert scheduler.step_update(k) == pytest.approx(want, rel=1e-12, abs=0)
        assert scheduler.optimizer.get_lr() == scheduler.step_update(k)


@pytest.mark.parametrize("resumed_at", [5, 10, 20, 25, 30])
def test_a_resumed_run_has_the_rates_of_an_uninterrupted_run(resumed_at):
    """The authors' schedule decays again if it is resumed at 20 or 30. This schedule does not."""
    straight = build(**STRAIGHT)
    rates = [straight.step_update(k) for k in range(41)]
    resumed = build(**STRAIGHT)
    resumed.load_state_dict(straight.state_dict())
    for _ in range(3):  # fairseq calls it several times after resuming, and at the end of an epoch
        assert resumed.step_update(resumed_at) == rates[resumed_at]
    resumed.step(1, val_loss=3.0)
    assert [resumed.step_update(k) for k in range(resumed_at, 41)] == rates[resumed_at:]
    vectors = golden.load("milestone")
    assert rates[0] == pytest.approx(vectors["initial_lr"])
    assert rates[1:] == pytest.approx(vectors["lr_after_update"], rel=1e-12)


def test_the_state_of_the_authors_schedule_is_loaded():
    scheduler = build(warmup_updates=0, milestones=[20])
    scheduler.load_state_dict({"lr": 1e-5})
    assert scheduler.step_update(19) == 0.1
    assert list(scheduler.state_dict()) == ["best"]


@pytest.mark.parametrize("words", ["300 450", "300,450", "[300,450]", "300, 450"])
def test_milestones_on_the_command_line(words):
    words = f"--lr 0.1 --warmup-updates 0 --milestones {words} --lr-decay-rate 0.5"
    scheduler = parse(*words.split())
    assert [scheduler.step_update(k) for k in (299, 300, 449, 450)] == [0.1, 0.05, 0.05, 0.025]


def test_milestones_must_be_numbers(capsys):
    with pytest.raises(SystemExit) as stop:
        parse("--lr", "0.1", "--milestones", "300", "data-bin")
    assert stop.value.code == 2
    last_line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "--milestones: expected numbers of updates" in last_line and "'300 data-bin'" in last_line


def test_options_on_the_command_line():
    words = "--lr 0.1 --warmup-updates 10 --warmup-init-lr 1e-5 --milestones 20 30 --lr-decay-rate 0.5"
    scheduler = parse(*words.split())
    assert scheduler.optimizer.get_lr() == 1e-5
    assert [scheduler.step_update(k) for k in (10, 19, 20, 30)] == [0.1, 0.1, 0.05, 0.025]
    constant = parse("--lr", "0.1")
    assert [constant.step_update(k) for k in (0, 500, 1000, 10**6)] == [0, 0.05, 0.1, 0.1]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"milestones": [30, 20]}, "strictly increasing, got .30, 20."),
        ({"milestones": [20, 20]}, "strictly increasing"),
        ({"milestones": [0, 20]}, "--milestones 0: must be at least 1"),
        ({"milestones": [-5]}, "--milestones -5: must be at least 1"),
        ({"warmup_updates": -1}, "--warmup-updates -1: must be at least 0"),
        ({"warmup_updates": 10, "warmup_init_lr": 0.2}, "must not be above the peak rate"),
        ({"warmup_updates": 10, "warmup_init_lr": math.nan}, "--warmup-init-lr nan: must be at least -1"),
        ({"warmup_updates": 0, "warmup_init_lr": 0.01}, "needs a warm-up"),
        ({"lr_decay_rate": 0.0}, "--lr-decay-rate 0: must be above 0 and at most 1"),
        ({"lr_decay_rate": 1.5}, "--lr-decay-rate 1.5: must be above 0 and at most 1"),
        ({"lr": [0.1, 0.01]}, "takes one --lr, the peak rate, got .0.1, 0.01."),
        ({"lr": [0.0]}, "--lr 0: must be above 0"),
    ],
)
def test_bad_options_are_refused_in_one_line(fields, message):
    with pytest.raises(InputError, match=message) as error:
        build(**fields)
    assert "\n" not in str(error.value)


def test_milestones_within_the_warm_up_bring_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        build(warmup_updates=10, milestones=[5, 10, 20])
    (message,) = [r.getMessage() for r in caplog.records if "milestones" in r.getMessage()]
    assert message.startswith("--milestones 5 10 lie within the warm-up of 10 updates")
