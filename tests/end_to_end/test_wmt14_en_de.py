"""The steps of scripts/wmt14_en_de.sh as processes, from tiny archives to a score."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked import ROOT
from wmt14_archives import corpus, write_archives

TINY = (
    "--cpu --num-workers 0 --max-tokens 4096 --update-freq 1 --max-update 2"
    " --encoder-layers 1 --decoder-layers 1 --encoder-attention-heads 2 --decoder-attention-heads 2"
    " --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 24 --decoder-ffn-embed-dim 24"
).split()
HEADS = "--encoder-projected-attention-heads 2 --decoder-projected-attention-heads 2".split()


def script(*words, python=Path(sys.executable)):
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / "wmt14_en_de.sh"), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )


def succeed(*words):
    result = script(*words)
    assert result.returncode == 0, result.stdout[-3000:]
    return result.stdout


def without_log(output):
    """Return the lines of the output that have no time of day."""
    return [line for line in output.splitlines() if " | INFO | " not in line]


def refused(*words):
    result = script(*words)
    assert result.returncode == 1 and "Traceback" not in result.stdout, result.stdout[-3000:]
    return result.stdout.strip().splitlines()[-1]


def prepare(folder, subword, vocab_size, pairs):
    mirror = write_archives(folder / "mirror")
    options = ["--subword", subword, "--vocab-size", vocab_size, "--workers", 2, "--max-unknown", 5]
    out = succeed("prepare", folder, "--mirror", mirror, *options)
    assert f"train: {pairs} pairs" in out, out
    assert "dropped (an empty side)" in out and "dropped (lengths in a ratio above" in out
    return folder / subword


@pytest.mark.slow
def test_the_steps(tmp_path):
    recipe = "luna_16_elu_tied"
    data = prepare(tmp_path, "moses", 150, pairs=291)
    tokens = (data / "tokenised" / "test.de").read_text(encoding="utf-8").split("\n")
    assert tokens[2] == "Ein Mann &amp; sein Hund aus Nordrhein @-@ Westfalen &lt; Katze ."
    out = succeed("train", tmp_path, recipe, *TINY, *HEADS, "--max-update", 100, "--max-epoch", 1)
    assert (
        "batch: 1 GPU x 4,096 tokens x --update-freq 1 (your option)" in out
        and "precision: fp32 (no GPU)" in out
    )
    assert "averaging 1 checkpoints" in succeed("average", tmp_path, recipe, 1)
    generate = ["--beam", 2, "--", "--cpu", "--max-len-b", 20]
    line = refused("evaluate", tmp_path, recipe, *generate)
    assert "the reference has 13 lines and wmt14/full has 3,003" in line
    out = succeed("evaluate", tmp_path, recipe, "--test-set", "none", *generate)
    assert (
        "BLEU = " in out and "tok:13a" in out and "BLEU of tokens, hyphens split = " in out and "chrF2" in out
    )
    results = tmp_path / "results" / recipe
    hypotheses = (results / "hypotheses.de").read_text(encoding="utf-8").split("\n")
    assert len(hypotheses) == 13 + 1 and not any("@" in line for line in hypotheses)
    assert len(json.loads((results / "scores.json").read_text())) == 3
    assert not list(results.glob("*.tmp"))


@pytest.mark.slow
def test_sentencepiece_with_a_tuned_length_penalty(tmp_path):
    data, recipe = prepare(tmp_path, "sentencepiece", 300, pairs=286), "transformer_base_adam"
    plain = (data / "plain" / "test.de").read_text(encoding="utf-8").split("\n")
    assert plain[:-1] == corpus()["newstest2014"][1]
    data.rename(tmp_path / "moses")  # where the other steps look
    succeed("train", tmp_path, recipe, *TINY, "--max-update", 100, "--max-epoch", 2)
    assert "averaging 2 checkpoints" in succeed("average", tmp_path, recipe, 2)
    evaluate = [tmp_path, recipe, *"--test-set none --tune-lenpen 0.5 1.5 -- --cpu --max-len-b 20".split()]
    out = succeed("evaluate", *evaluate)
    table = dict(line.split() for line in out.splitlines() if line.startswith("       "))
    best = max(table, key=lambda penalty: float(table[penalty]))
    assert set(table) == {"0.5", "1.5"} and f"length penalty {best}" in out
    generated = tmp_path / "results" / recipe / "generate-valid-lenpen0.5.txt"
    before = generated.stat().st_mtime_ns
    assert without_log(succeed("evaluate", *evaluate)) == without_log(out)
    assert generated.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "words, number, more",
    [
        ([], "10", []),
        (["3"], "3", []),
        (["3", "--checkpoint-upper-bound", "40"], "3", ["--checkpoint-upper-bound", "40"]),
        (["--ema"], "10", ["--ema"]),
    ],
)
def test_the_command_that_averages_gets_all_options(words, number, more, tmp_path):
    (tmp_path / "python").write_text('#!/usr/bin/env bash\necho "$@"\n')
    (tmp_path / "python").chmod(0o755)
    out = script("average", "wmt14", "luna", *words, python=tmp_path / "python").stdout.split()
    inputs = ["--inputs", "wmt14/checkpoints/luna", "--num-epoch-checkpoints", number]
    output = ["--output", "wmt14/checkpoints/luna/averaged.pt"]
    assert out == ["-m", "luna_fairseq.commands.average_checkpoints", *inputs, *output, *more]


@pytest.mark.parametrize(
    "words, message",
    [
        ((), "expected prepare, train, average or evaluate, got"),
        (("train", "/nowhere", "luna_16_elu"), "there is no recipe wmt14_en_de/luna_16_elu. Did you mean "),
    ],
)
def test_wrong_use_is_one_line(words, message):
    assert message in refused(*words)
