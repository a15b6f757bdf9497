"""fairseq-train with --optimizer apollo --lr-scheduler milestone, as a process."""

import re
from pathlib import Path

import pytest
import torch
from forked import USER_DIR, run_module

# 64 sentences in batches of 4; fairseq's dummy task keeps one batch back: 15 updates an epoch.
TASK = "--task dummy_lm --dict-size 49 --dataset-size 64 --tokens-per-sample 16 --batch-size 4"
MODEL = (
    "--arch transformer_lm --decoder-layers 1 --decoder-embed-dim 16 --decoder-ffn-embed-dim 16"
    " --decoder-attention-heads 2 --criterion cross_entropy --dropout 0.1"
)
OTHER = "--cpu --disable-validation --log-interval 1 --log-format simple --num-workers 0"
APOLLO = (
    "--optimizer apollo --lr 0.01 --clip-norm 0.5 --clip-mode each "
    "--lr-scheduler milestone --warmup-updates 5"
)


def train(folder, words):
    plugin = ("--user-dir", Path(USER_DIR), "--save-dir", folder)
    return run_module("fairseq_cli.train", [*plugin, TASK, MODEL, OTHER, APOLLO, words], folder)


def logged_rates(done):
    assert done.returncode == 0, done.stderr[-2000:]
    lines = re.findall(r"num_updates=(\d+), lr=([\d.e-]+)", done.stdout + done.stderr)
    return {int(k): float(lr) for k, lr in lines}


@pytest.mark.slow
def test_a_resumed_run_equals_a_straight_one(tmp_path):
    """Milestones on an epoch's last update (15), and on the update of the checkpoint (18)."""
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    straight.mkdir()
    resumed.mkdir()
    words = "--milestones 15 18"
    rates = logged_rates(train(straight, f"{words} --max-update 22"))
    assert rates[1] == 0.002 and rates[5] == rates[14] == 0.01
    assert rates[15] == rates[17] == 0.001
    assert rates[18] == rates[22] == 0.0001

    logged_rates(train(resumed, f"{words} --max-update 18"))
    second_half = logged_rates(train(resumed, f"{words} --max-update 22"))
    assert second_half == {k: rates[k] for k in (19, 20, 21, 22)}

    left, right = (
        torch.load(folder / "checkpoint_last.pt", weights_only=False) for folder in (straight, resumed)
    )
    assert all(torch.equal(v, right["model"][k]) for k, v in left["model"].items())
    for key, state in left["last_optimizer_state"]["state"].items():
        other = right["last_optimizer_state"]["state"][key]
        assert state["step"] == other["step"] == 22
        for name in ("exp_avg_grad", "approx_hessian", "update"):
            assert torch.equal(state[name], other[name])


@pytest.mark.parametrize(
    "words, message",
    [
        ("--clip-mode all", "argument --clip-mode: invalid choice: 'all'"),
        ("--milestones 30 20", "--milestones must be positive and strictly increasing, got [30, 20]"),
        ("--amp", "--amp does not work with --optimizer apollo"),
    ],
)
def test_bad_options_end_the_command_with_one_line(tmp_path, words, message):
    done = train(tmp_path, words)
    assert done.returncode != 0
    assert message in done.stderr.strip().splitlines()[-1]
    assert list(tmp_path.glob("*.pt")) == []


@pytest.mark.slow
def test_learning_rate_of_the_other_convention_is_warned_of_once(tmp_path):
    done = train(tmp_path, "--lr 10 --max-update 2")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("mix of two conventions") == 1
    resumed = train(tmp_path, "--lr 10 --max-update 3")
    assert resumed.stderr.count("mix of two conventions") == 1
