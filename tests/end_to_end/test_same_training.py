"""A checkpoint of another direction or model is refused in one line, although dictionary and weights fit."""

import pytest
from commands import plugin, refused, succeed
from reversal import AUTHORS_COMMAND
from saved_training import load

SWAPPED = "-s tgt -t src"
DIRECTION = "was trained to translate src to tgt, not tgt to src. Give -s src -t tgt, or a checkpoint of that"
USES = {
    "generate": ("--beam 1 --batch-size 8 --cpu", DIRECTION),
    "validate": ("--task translation --batch-size 8 --cpu", DIRECTION),
    "eval_lm": ("--batch-size 8 --cpu", "was trained for translation, not for language modelling"),
}
RESUMED = {
    SWAPPED: DIRECTION,
    "--pack-activation elu": "-activation softplus, but this run has --pack-activation elu, which",
    "--activation-fn gelu": "with --activation-fn relu, but this run has --activation-fn gelu",
    "--encoder-attention-heads 2": "-heads 4, but this run has --encoder-attention-heads 2",
    "--no-scale-embedding": "with no --no-scale-embedding, but this run has --no-scale-embedding",
}
SLOW = [pytest.param(words, marks=[pytest.mark.slow] * (words not in list(RESUMED)[:2])) for words in RESUMED]


@pytest.mark.parametrize("command", USES)
def test_use_for_another_purpose(command, trained, data):
    options, message = USES[command]
    swapped = () if command == "eval_lm" else (SWAPPED,)
    folder = data if command != "eval_lm" else data / "lm"
    if command == "eval_lm":
        folder.mkdir()
        for name in ("dict.src.txt", "test.src-tgt.src.bin", "test.src-tgt.src.idx"):
            new = name.replace("test.src-tgt.src", "test").replace(".src", "")
            (folder / new).write_bytes((data / name).read_bytes())
    path = ("--path", trained / "checkpoint_best.pt")
    assert message in refused(command, *plugin(folder), *path, *swapped, options)


@pytest.mark.parametrize("words", SLOW)
def test_resuming_as_another_model(words, trained, data, tmp_path):
    start = ("--max-update 20 --restore-file", trained / "checkpoint_last.pt", "--save-dir", tmp_path)
    assert RESUMED[words] in refused("train", *plugin(data), AUTHORS_COMMAND, words, *start)
    assert list(tmp_path.iterdir()) == []


def test_options_that_may_change_keep_the_name_of_the_run(trained, data, tmp_path):
    words = (AUTHORS_COMMAND, "--dropout 0.3 --luna-backend chunk --max-update 13")
    start = ("--restore-file", trained / "checkpoint_last.pt", "--save-dir", tmp_path)
    succeed("train", *plugin(data), *words, *start)
    before, after = (load(folder / "checkpoint_last.pt")["extra_state"] for folder in (trained, tmp_path))
    assert before["luna_fairseq.training"] == after["luna_fairseq.training"]
    assert before["luna_fairseq.training"]["run"]


def test_fine_tuning_on_another_direction_is_allowed(trained, data, tmp_path):
    words = (AUTHORS_COMMAND, SWAPPED, "--pack-activation elu --max-update 1")
    log = succeed(
        "train", *plugin(data), *words, "--finetune-from-model", trained / "checkpoint_last.pt", "--save-dir",
        tmp_path,
    )  # fmt: skip
    assert "with --pack-activation softplus, but this run has --pack-activation elu, which changes" in log
