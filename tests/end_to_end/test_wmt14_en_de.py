"""The scripts of the WMT'14 experiment, as processes, from tiny archives of the real layout to a score."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT
from wmt14_archives import corpus, write_archives

TINY = (
    "--cpu --num-workers 0 --max-tokens 4096 --update-freq 1 --max-update 2"
    " --encoder-layers 1 --decoder-layers 1 --encoder-attention-heads 2 --decoder-attention-heads 2"
    " --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 24 --decoder-ffn-embed-dim 24"
).split()
HEADS = "--encoder-projected-attention-heads 2 --decoder-projected-attention-heads 2".split()


def script(name, *words):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / name), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )


def succeed(name, *words):
    result = script(name, *words)
    assert result.returncode == 0, result.stdout[-3000:]
    return result.stdout


def without_log(output):
    """Its lines that have no time of day."""
    return [line for line in output.splitlines() if " | INFO | " not in line]


def refused(name, *words):
    result = script(name, *words)
    assert result.returncode == 1 and "Traceback" not in result.stdout, result.stdout[-3000:]
    return result.stdout.strip().splitlines()[-1]


def prepare(folder, subword, vocab_size):
    mirror = write_archives(folder / "mirror")
    options = ["--subword", subword, "--vocab-size", vocab_size, "--max-length", 250, "--max-ratio", 1.5]
    out = succeed("prepare_wmt14_en_de.sh", "--destdir", folder, "--mirror", mirror, *options, "--workers", 2)
    assert "train: 29" in out and "dropped (an empty side)" in out and "dropped (lengths in a ratio above" in out
    return folder / subword


def test_moses(tmp_path):
    data = prepare(tmp_path, "moses", 150)
    tokens = (data / "tokenised" / "test.de").read_text(encoding="utf-8").split("\n")
    assert tokens[2] == "Ein Mann &amp; sein Hund aus Nordrhein @-@ Westfalen &lt; Katze ."
    save_dir = tmp_path / "checkpoints"
    out = succeed(
        "train_wmt14_en_de.sh", "luna_16_elu_tied", data, *TINY, *HEADS, "--save-dir", save_dir
    )
    assert "batch: 1 GPUs x 4,096 tokens x --update-freq 1, as given" in out and "precision: fp32 (no GPU)" in out
    evaluate = [data, "--path", save_dir / "checkpoint_last.pt", "--results", tmp_path / "results", "--beam", 2]
    generate = ["--", "--cpu", "--max-len-b", 20]
    line = refused("evaluate_wmt14_en_de.sh", *evaluate, *generate)
    assert "the reference has 13 lines and wmt14/full has 3,003" in line
    out = succeed("evaluate_wmt14_en_de.sh", *evaluate, "--test-set", "none", *generate)
    assert "BLEU = " in out and "tok:13a" in out and "BLEU of tokens, hyphens split = " in out and "chrF2" in out
    hypotheses = (tmp_path / "results" / "hypotheses.de").read_text(encoding="utf-8").split("\n")
    assert len(hypotheses) == 13 + 1 and not any("@" in line for line in hypotheses)
    assert len(json.loads((tmp_path / "results" / "scores.json").read_text())) == 3
    assert not list((tmp_path / "results").glob("*.tmp"))


@pytest.mark.slow
def test_sentencepiece_with_a_tuned_length_penalty(tmp_path):
    data = prepare(tmp_path, "sentencepiece", 300)
    plain = (data / "plain" / "test.de").read_text(encoding="utf-8").split("\n")
    assert plain[:-1] == corpus()["newstest2014"][1]
    save_dir = tmp_path / "checkpoints"
    train = [data, *TINY, "--save-dir", save_dir, "--max-update", 100, "--max-epoch", 2]
    succeed("train_wmt14_en_de.sh", "transformer_base_adam", *train)
    assert "averaging 2 checkpoints" in succeed("average_checkpoints.sh", save_dir, 2)
    evaluate = [data, "--path", save_dir / "averaged.pt", "--results", tmp_path / "results", "--test-set", "none"]
    evaluate += ["--tune-lenpen", 0.5, 1.5, "--", "--cpu", "--max-len-b", 20]
    out = succeed("evaluate_wmt14_en_de.sh", *evaluate)
    table = dict(line.split() for line in out.splitlines() if line.startswith("       "))
    best = max(table, key=lambda penalty: float(table[penalty]))
    assert set(table) == {"0.5", "1.5"} and f"length penalty {best}" in out
    before = (tmp_path / "results" / "generate-valid-lenpen0.5.txt").stat().st_mtime_ns
    assert without_log(succeed("evaluate_wmt14_en_de.sh", *evaluate)) == without_log(out)
    assert (tmp_path / "results" / "generate-valid-lenpen0.5.txt").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "words, message",
    [
        (("train_wmt14_en_de.sh",), "RECIPE is missing"),
        (("train_wmt14_en_de.sh", "luna_16_elu_tied", "--cpu"), "DATA is missing"),
        (("train_wmt14_en_de.sh", "luna_16_elu_tied", "/nowhere"), "/nowhere is no folder"),
        (("average_checkpoints.sh",), "usage: scripts/average_checkpoints.sh SAVE_DIR [N]"),
        (("count_parameters.sh",), "RECIPE is missing"),
    ],
)
def test_wrong_use_is_one_line(words, message):
    assert message in refused(*words)
