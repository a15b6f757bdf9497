"""Every command that continues a run compares its options and inputs with those of the beginning."""

import argparse

import pytest

from luna_fairseq.commands import train
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import checksum_of_data
from luna_fairseq.files.same_run import check_same_run, parse_options
from luna_fairseq.lra import seeds
from luna_fairseq.masked_lm.finetuning.runs import FineTuning

RECIPE = "bitext/demo"


@pytest.fixture
def data(tmp_path):
    """Folder with the file names of prepared data."""
    for name in ("train.bin", "valid.bin", "dict.txt", "src-bin/train.idx"):
        path = tmp_path / "data" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    return tmp_path / "data"


def begin_training(data, out, *words):
    line = train.build_command([RECIPE, str(data), "--save-dir", str(out), *words])
    (out / "checkpoint_last.pt").touch()
    return line


def begin_seeds(data, out, *words):
    """Run luna-lra-seeds with one seed, and interrupt it in its training."""
    args = argparse.Namespace(
        recipe="listops",
        data=data,
        out=out,
        models=["luna-16"],
        seeds=[1],
        figure=None,
        costs=None,
        curves=None,
    )

    def break_off(data, folder, *_):
        (folder / "checkpoint_last.pt").touch()
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(seeds, "train_and_test", break_off)
        seeds.run(args, list(words))


def begin_finetuning(data, out, *words):
    run = FineTuning.__new__(FineTuning)
    run.args = argparse.Namespace(pretrained=data.parent / "pretrained.pt", data=data)
    run.args.pretrained.write_text("weights")
    run._check_same_run(out, [str(data), "--lr", "1", *words])
    (out / "checkpoint_last.pt").touch()


COMMANDS = [begin_training, begin_seeds, begin_finetuning]


@pytest.mark.parametrize("begin", COMMANDS)
@pytest.mark.parametrize(
    "words, change, named",
    [
        (["--seed", "7"], None, "--seed"),
        (["--lr", "0.125"], None, "--lr"),
        ([], "train.bin", "data"),
        ([], "src-bin/train.idx", "data"),
        ([], "dict.txt", "data"),
    ],
)
def test_another_run_is_refused_in_one_line(begin, words, change, named, data, tmp_path):
    begin(data, tmp_path / "out")
    begin(data, tmp_path / "out", "--max-update", "9", "--log-interval", "5")  # these options may change
    if change:
        (data / change).write_text("something else of any length")
    with pytest.raises(InputError) as caught:
        begin(data, tmp_path / "out", *words)
    message = str(caught.value)
    assert named in message and "to start again" in message and "\n" not in message


@pytest.mark.parametrize("words", [["--reset-optimizer"], ["--restore-file", "x.pt"], ["--max-update", "3"]])
def test_explicit_requests_are_not_compared(words, data, tmp_path):
    begin_training(data, tmp_path / "out")
    words = [*words, "--seed", "9"] if "--max-update" not in words else words
    assert begin_training(data, tmp_path / "out", *words)[-2:] == words[-2:]


def test_the_batch_per_gpu_may_change_while_the_whole_batch_stays(data, tmp_path):
    def begin(*words):
        line = train.build_command(
            ["masked_lm/small", str(data), "--save-dir", str(tmp_path / "out"), *words]
        )
        (tmp_path / "out" / "checkpoint_last.pt").touch()
        return int(line[line.index("--update-freq") + 1])

    assert [begin(), begin("--batch-size", "8"), begin("--max-sentences=4"), begin()] == [2, 4, 8, 2]
    with pytest.raises(InputError, match="--batch-size 16 before, --batch-size 8 now"):
        begin("--batch-size", "8", "--update-freq", "2")


def test_without_checkpoints_nothing_is_compared(data, tmp_path):
    begin_training(data, tmp_path / "out")
    (tmp_path / "out" / "checkpoint_last.pt").unlink()
    begin_training(data, tmp_path / "out", "--seed", "9")
    with pytest.raises(InputError, match="--seed 9 before, --seed 7 now"):
        begin_training(data, tmp_path / "out", "--seed", "7")


def test_a_run_of_a_version_without_records_continues(data, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text('"a checksum"')
    check_same_run(tmp_path / "out", "--out", {"--lr": "1"}, is_resumed=False)
    with pytest.raises(InputError, match="no --x before, --x y now"):
        check_same_run(tmp_path / "out", "--out", {"--lr": "1", "--x": "y"}, is_resumed=True)
    (tmp_path / "out" / "run.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        check_same_run(tmp_path / "out", "--out", {}, is_resumed=True)


def test_options_and_contents(data, tmp_path):
    words = ["DATA", "--lr", "1", "2", "--flag", "--lr=3", "--adam-betas", "(0.9, 0.98)"]
    assert parse_options(words) == {"--lr": "3", "--flag": "", "--adam-betas": "(0.9, 0.98)"}
    before = checksum_of_data([data])
    (data / "valid.bin").write_text("other")
    assert checksum_of_data([data]) == before != checksum_of_data([data], ("train", "valid"))
