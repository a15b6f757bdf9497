"""The scripts, with real processes, on a few dozen pairs and a tiny model."""

import os
import subprocess
import sys
from pathlib import Path

import demo_corpus
import pytest

ROOT = Path(__file__).resolve().parents[1]
TINY = (
    "--cpu --encoder-layers 1 --decoder-layers 1 --encoder-attention-heads 2 --decoder-attention-heads 2"
    " --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 24 --decoder-ffn-embed-dim 24"
    " --projection-length 4 --warmup-updates 2 --milestones 4"
).split()


def script(name, *options):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / name), *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": path},
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bitext")
    corpus = folder / "corpus"
    demo_corpus.main(["--destdir", str(corpus), "--train", "45", "--valid", "5", "--test", "13"])
    options = [
        "--source",
        "en",
        "--target",
        "de",
        "--preset",
        "demo",
        "--average",
        "2",
        "--out",
        folder / "out",
    ]
    for split in ("train", "valid", "test"):
        options += [f"--{split}pref", corpus / split]
    return (
        folder / "out",
        options,
        script("train_bitext.sh", *options, "--vocab-size", 150, "--", *TINY, "--max-epoch", 2),
    )


def test_from_text_to_score(trained):
    out, _, result = trained
    assert result.returncode == 0, result.stdout
    assert "BLEU = " in result.stdout and "signature: " in result.stdout
    assert result.stdout.count("  reference  ") == 10
    assert len((out / "hypotheses.de").read_text(encoding="utf-8").split("\n")) == 13 + 1
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == [
        "averaged.pt",
        "checkpoint1.pt",
        "checkpoint2.pt",
        "checkpoint_best.pt",
        "checkpoint_last.pt",
        "sentencepiece.bpe.model",
    ]


@pytest.mark.slow
def test_started_again_it_goes_on(trained):
    out, options, _ = trained
    result = script("train_bitext.sh", *options, "--vocab-size", 150, "--", *TINY, "--max-epoch", 3)
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("finished before") == 3
    log = (out / "train.log").read_text(encoding="utf-8")
    assert "Loaded checkpoint" in log and log.count("begin training epoch 2") == 1
    assert (out / "checkpoints" / "checkpoint3.pt").exists()
    assert not (out / "checkpoints" / "checkpoint1.pt").exists()


@pytest.mark.slow
def test_another_encoding_under_old_checkpoints_is_refused(trained):
    _, options, _ = trained
    result = script("train_bitext.sh", *options, "--vocab-size", 160)
    assert result.returncode == 1
    assert "another --vocab-size: give another --out" in result.stdout.splitlines()[-1]


def test_help_names_every_option():
    result = script("train_bitext.sh", "--help")
    assert result.returncode == 0
    for option in ("--trainpref", "--source", "--vocab-size", "--preset", "--out", "--average"):
        assert option in result.stdout


@pytest.mark.parametrize(
    "options, message",
    [
        (["--lr", "1"], "unknown option --lr: see --help (options of fairseq-train come after --)"),
        (["--source"], "--source needs a value"),
        (["--source", "en"], "--trainpref is missing"),
    ],
)
def test_wrong_use_is_one_line(options, message):
    result = script("train_bitext.sh", *options)
    assert result.returncode == 1
    assert message in result.stdout and result.stdout.count("\n") == 1


def test_unknown_preset(tmp_path):
    options = [f"--{name}" for name in "trainpref validpref testpref source target vocab-size out".split()]
    given = [item for option in options for item in (option, tmp_path / "x")]
    result = script("train_bitext.sh", *given, "--preset", "huge")
    assert result.returncode == 1 and "--preset huge is unknown" in result.stdout


def test_failing_preparation_stops_the_script(tmp_path):
    options = [
        "--source",
        "en",
        "--target",
        "de",
        "--vocab-size",
        100,
        "--preset",
        "demo",
        "--out",
        tmp_path / "out",
    ]
    prefixes = ["--trainpref", tmp_path / "a", "--validpref", tmp_path / "b", "--testpref", tmp_path / "c"]
    result = script("train_bitext.sh", *options, *prefixes)
    assert result.returncode == 1
    assert "a.en does not exist" in result.stdout and "== train" not in result.stdout
