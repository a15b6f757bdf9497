"""--store-ema for a run that starts from a checkpoint without averaged weights."""

import pytest
import torch
from forked import run_trainings, train
from reversal import AUTHORS_COMMAND
from saved_training import assert_equal, load

UPDATES = 12  # updates of the checkpoint


@pytest.mark.parametrize("precision", ["", "--bf16 --ema-fp32 --reset-optimizer"])
@pytest.mark.parametrize("how", ["--restore-file", "--finetune-from-model"])
def test_the_average_starts_from_the_loaded_weights(how, precision, data, trained, tmp_path):
    """With --ema-decay 1, the average does not change, so the checkpoint shows its initial value."""
    if how == "--finetune-from-model":  # resets the optimizer anyway
        precision = precision.replace(" --reset-optimizer", "")
    start = trained / "checkpoint_last.pt"
    words = f"{AUTHORS_COMMAND} --store-ema --ema-decay 1.0 --disable-validation {precision}"
    words += f" --max-update {UPDATES + 2}"
    ((statuses, log),) = run_trainings({"argvs": [(data, words, how, start, "--save-dir", tmp_path)]})
    assert statuses == [0], log[-3000:]
    assert "has no EMA (--store-ema), so the average starts from its weights" in log
    extra_state, before = load(tmp_path / "checkpoint_last.pt")["extra_state"], load(start)["model"]
    assert extra_state["ema"].keys() == before.keys()
    for name, weights in before.items():
        rounded = weights.bfloat16().float() if precision else weights
        assert torch.equal(extra_state["ema"][name], rounded), name
        assert not precision or torch.equal(extra_state["ema_fp32_params"][name], weights), name


def test_the_average_of_a_resumed_run(data, tmp_path):
    """The run stops one update after a step of the average."""
    words = f"{AUTHORS_COMMAND} --store-ema --ema-decay 0.5 --ema-update-freq 3 --disable-validation"
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    parts = [("--save-dir", stopped, f"--max-update {updates}") for updates in (4, 9)]
    train(*((data, words, *part) for part in (("--save-dir", straight, "--max-update 9"), *parts)))
    found = [load(folder / "checkpoint_last.pt")["extra_state"]["ema"] for folder in (straight, stopped)]
    assert_equal(*found)
