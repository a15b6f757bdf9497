"""A resumed run has the learning rates of an uninterrupted one, and a run that has ended stays so."""

import re

import pytest
from forked import train
from saved_training import assert_same_training, load
from test_resuming import ADAM

# The loss stays the same with such rates, so that the validations bring no improvement.
SCHEDULES = {
    "reduce_lr_on_plateau": "--lr 1e-7 --lr-patience 1 --lr-shrink 0.5",
    "reduce_lr_on_plateau, warm-up": "--lr 1e-7 --lr-patience 1 --lr-shrink 0.5 --warmup-updates 10",
    "cosine": "--lr 0.01 --lr-period-updates 9 --warmup-updates 3 --lr-shrink 0.5",
    "fixed": "--lr 0.01 --force-anneal 3 --lr-shrink 0.5 --warmup-updates 5",
    "inverse_sqrt": "--lr 0.01 --warmup-updates 5",
    "manual": "--lr 0.01 --epoch2lr {'1':0.01,'3':0.002} --update2lr {'1':0.01,'9':0.001,'20':0.005}",
    "polynomial_decay": "--lr 0.01 --total-num-update 50 --warmup-updates 5 --power 2",
    "step": "--lr 0.01 --lr-deacy-period 6 --lr-decay 0.5 --warmup-updates 3",
    "tri_stage": "--lr 0.01 --warmup-steps 5 --hold-steps 5 --decay-steps 15",
    "triangular": "--lr 0.001 --max-lr 0.01 --lr-period-updates 8 --lr-shrink 0.5",
    "milestone": "--lr 0.01 --warmup-updates 3 --milestones 7 10 --lr-decay-rate 0.5",
}
OTHERS = [pytest.param(name, marks=[pytest.mark.slow, pytest.mark.guard]) for name in SCHEDULES]
NORMAL = [pytest.param("reduce_lr_on_plateau"), *OTHERS[1:]]


def command(name):
    options = f"--lr-scheduler {name.split(',')[0]} {SCHEDULES[name]}"
    words = re.sub("--lr 0.01|--lr-scheduler inverse_sqrt --warmup-updates 5", "", ADAM)
    return f"{words} {options} --log-interval 1 --log-format simple"


@pytest.mark.parametrize("name", NORMAL)
def test_rates_after_a_resume(name, data, tmp_path):
    """The run stops at the ends of epochs 1, 2 and 3, and once within an epoch."""
    words, straight, stopped = (
        (data, command(name), "--max-epoch 5 --no-epoch-checkpoints"),
        tmp_path / "straight",
        tmp_path / "stopped",
    )
    parts = [(*words, f"--max-epoch {epoch} --save-dir", stopped) for epoch in (1, 2, 3)]
    parts.append((*words, "--max-update 24 --save-dir", stopped))
    logs = train((*words, "--save-dir", straight), *parts, (*words, "--save-dir", stopped))
    rates = [re.findall(r"train_inner .* lr=([^,]+),", log) for log in logs]
    assert len(set(rates[0])) > 1
    assert sum(rates[1:], []) == rates[0]
    ends = [load(folder / "checkpoint_last.pt") for folder in (straight, stopped)]
    for end in ends:
        # A counter of torch on which no rate depends. fairseq counts otherwise during the warm-up.
        end["optimizer_history"][-1]["lr_scheduler_state"].pop("last_epoch", None)
    assert_same_training(*ends)


def test_a_run_without_patience_left_stays_ended(data, tmp_path):
    words = (data, command("reduce_lr_on_plateau"), "--max-epoch 9 --save-dir", tmp_path, "--patience")
    first, again, reset, longer = train(
        (*words, "2"), (*words, "2"), (*words, "2 --reset-optimizer --no-save"), (*words, "3")
    )
    assert "early stop since" in first and "begin training epoch" not in again
    assert "nothing to train" in again and "--patience 2" in again
    assert "begin training epoch" in reset and "begin training epoch" in longer


def test_a_run_without_time_left_stays_ended(data, tmp_path):
    words = (data, command("fixed"), "--max-update 9 --save-dir", tmp_path, "--stop-time-hours")
    first, again, longer = train((*words, "1e-6"), (*words, "1e-6"), (*words, "1"))
    assert "due to cumulative_training_time" in first and "begin training epoch" not in again
    assert "nothing to train: the run has made 1 updates, and --stop-time-hours 1e-06 has ended it" in again
    assert "num_updates: 9 >= max_update: 9" in longer
