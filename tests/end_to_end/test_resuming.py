"""A resumed run equals an uninterrupted run bit for bit, with dropout, within an epoch and at its end."""

import functools

import pytest
import torch
from commands import TINY
from copying import PRETRAIN
from forked import train
from old_torch import FP16_ON_CPU
from reversal import AUTHORS_COMMAND
from saved_training import assert_same_training, classes_in, load

ADAM = f"""
    --seed 1 -s src -t tgt -a transformer {TINY} --share-all-embeddings --max-tokens 100
    --optimizer adam --adam-betas (0.9,0.98) --lr 0.01 --clip-norm 1.0 --weight-decay 1e-4
    --lr-scheduler inverse_sqrt --warmup-updates 5 --dropout 0.1 --attention-dropout 0.1
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --num-workers 0
"""
EVERY_UPDATE = (
    "--save-interval-updates 1 --keep-interval-updates -1 --keep-last-epochs -1 --disable-validation"
)
FP16 = "--memory-efficient-fp16 --fp16-init-scale 1 --fp16-scale-window 4"
# Options of each case, checkpoints to resume from (within an epoch or at its end), and epoch of update 13.
CASES = {
    "apollo": (AUTHORS_COMMAND, ("checkpoint_2_10", "checkpoint1"), 2),
    "adam": (ADAM, ("checkpoint_2_11",), 2),
    "bf16": (f"{AUTHORS_COMMAND} --bf16 --update-freq 2 --num-workers 1", ("checkpoint_2_6",), 4),
    "memory-efficient-fp16": (f"{AUTHORS_COMMAND} {FP16}", ("checkpoint_2_10",), 2),
    "curriculum": (f"{AUTHORS_COMMAND} --curriculum 1", ("checkpoint1",), 2),
    "masked-lm": (f"{PRETRAIN} --num-workers 1", ("checkpoint_3_5",), 7),
}


@pytest.fixture(scope="module")
def runs(data, text, tmp_path_factory):
    """Function that trains an uninterrupted run and resumed runs of a case once, and returns their folder."""

    @functools.lru_cache(maxsize=None)
    def make(name):
        words, checkpoints, _ = CASES[name]
        if name == "memory-efficient-fp16" and not FP16_ON_CPU:
            pytest.skip(f"torch {torch.__version__} has no fp16 on a CPU")
        folder = tmp_path_factory.mktemp(name)
        corpus = text if name == "masked-lm" else data
        common, straight = (corpus, words, EVERY_UPDATE, "--max-update 13"), folder / name
        resumed = [
            (*common, "--restore-file", straight / f"{start}.pt", "--save-dir", folder / f"{name}-{start}")
            for start in checkpoints
        ]
        train((*common, "--save-dir", straight), *resumed)
        train((*common, "--save-dir", straight))  # already finished, so there is no further update
        return folder

    return make


# Only one case is fast enough for the normal tests, because each case trains several times.
EVERY_CASE = [
    pytest.param(name, start, marks=[] if name == "apollo" else [pytest.mark.slow])
    for name in CASES
    for start in CASES[name][1]
]


@pytest.mark.parametrize("name, start", EVERY_CASE)
def test_resumed_equals_straight(name, start, runs):
    straight, resumed = (
        load(runs(name) / folder / "checkpoint_last.pt") for folder in (name, f"{name}-{start}")
    )
    assert straight["optimizer_history"][-1]["num_updates"] == 13
    assert straight["extra_state"]["train_iterator"]["epoch"] == CASES[name][2]
    assert_same_training(straight, resumed)


@pytest.mark.slow
def test_float32_weights_are_kept(runs):
    """Otherwise, a resumed run with --bf16 would start from rounded weights."""
    state = load(runs("bf16") / "bf16" / "checkpoint_last.pt")
    exact = state["last_optimizer_state"]["fp32_params"]
    assert all(weights.dtype is torch.float32 for weights in exact)
    assert not all(torch.equal(weights, weights.bfloat16().float()) for weights in exact)


@pytest.mark.parametrize("name", ["checkpoint_last.pt", "checkpoint_best.pt"])
def test_a_checkpoint_holds_no_class_of_this_package(name, trained):
    """Checkpoints therefore load after the folders and classes of the package are renamed."""
    assert not any("luna" in found for found in classes_in(trained / name))
