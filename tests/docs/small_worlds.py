"""Prepare folders in which documented examples run on tiny text and with tiny models.

The examples run as they are written. To make a command small, the options in SHRUNK are appended to its own.
If an option is given twice, the last value counts.
"""

import os
import random
import re
import shutil
import sys
from pathlib import Path
from typing import Dict, List

import demo_corpus
from documented_examples import ROOT

import fairseq

FAIRSEQ = ("eval-lm", "generate", "interactive", "train", "validate")
SETUP = (ROOT / "setup.py").read_text(encoding="utf-8")
MODULES = dict(re.findall(r'"(luna-[\w-]+) = ([\w.]+):main"', SETUP))
MODULES.update({f"fairseq-{name}": f"fairseq_cli.{name.replace('-', '_')}" for name in FAIRSEQ})
ENCODER = "--encoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-attention-heads 2"
DECODER = "--decoder-layers 1 --decoder-embed-dim 16 --decoder-ffn-embed-dim 24 --decoder-attention-heads 2"
FEW = "--cpu --num-workers 0 --max-update 3 --warmup-updates 1"
BITEXT = f"{ENCODER} {DECODER} --cpu --num-workers 0 --max-tokens 500 --update-freq 1 --warmup-updates 2"
SHRUNK: Dict[str, Dict[str, str]] = {
    "shell": {},
    "python": {},
    "runs": {},
    "bitext": {
        "luna-train-bitext": f"--vocab-size 150 -- {BITEXT} --max-epoch 5",
        "luna-prepare-bitext": "--vocab-size 150",
        "fairseq-train": f"{BITEXT} --max-epoch 10",
    },
    "text": {
        "luna-prepare-text": "--vocab-size 150",
        "luna-train": f"{ENCODER} {FEW} --total-num-update 3 --batch-size 8 --update-freq 1",
        "fairseq-train": f"{ENCODER} {FEW}",
        "luna-finetune": "--batch-sizes 32 --lrs 1e-5 --epochs 1 -- --cpu --num-workers 0",
    },
    "causal": {
        "luna-prepare-text": "--vocab-size 150",
        "fairseq-train": f"{DECODER} {FEW}",
    },
    "lra": {
        "luna-prepare-lra": "--train 30 --valid 10 --test 10 --min-length 10 --max-length 30",
        "luna-lra-seeds": f"--models transformer luna-16-p --seeds 1 2 -- {ENCODER} {FEW}",
        "fairseq-train": f"{ENCODER} {FEW}",
    },
}


def fill(fixture: str, folder: Path) -> Dict[str, str]:
    """Write the files of a fixture to a folder, and return the environment to run its examples in."""
    if fixture == "bitext":
        sizes = {"test": 13, "valid": 5, "train": 45}
        demo_corpus.write_corpus(demo_corpus.draw_corpus(sizes, seed=1), folder / "data")
    if fixture in ("text", "causal"):
        _write_text(folder)
    if fixture == "text":
        _write_sst2(folder / "glue" / "SST-2")
    if fixture == "runs":
        log = ROOT / "tests" / "report" / "logs" / "simple.log"
        for name in ("luna", "transformer"):
            (folder / "checkpoints" / name).mkdir(parents=True)
            shutil.copyfile(str(log), str(folder / "checkpoints" / name / "train.log"))
    commands = folder / ".commands"
    commands.mkdir()
    for name, module in MODULES.items():
        write_command(commands / name, f'exec python -m {module} "$@" {SHRUNK[fixture].get(name, "")}')
    # An installed package is found from any folder. Another checkout must be linked in this folder.
    if (Path(fairseq.__file__).parents[1] / "luna_fairseq").resolve() != ROOT / "luna_fairseq":
        (folder / "luna_fairseq").symlink_to(ROOT / "luna_fairseq")
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def write_command(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/bash\n{line}\n", encoding="utf-8")
    path.chmod(0o755)


def _sentences(number: int, seed: int) -> List[str]:
    return [english for english, _ in demo_corpus.draw_corpus({"all": number}, seed)["all"]]


def _write_text(folder: Path) -> None:
    (folder / "text").mkdir()
    for name, seed in (("text/first.txt", 1), ("text/second.txt", 2), ("valid.txt", 3)):
        (folder / name).write_text("\n".join([*_sentences(60, seed), ""]), encoding="utf-8")


def _write_sst2(folder: Path) -> None:
    folder.mkdir(parents=True)
    draw = random.Random(1)
    for name, number in (("train", 40), ("dev", 10)):
        rows = [f"{sentence}\t{draw.randrange(2)}\n" for sentence in _sentences(number, number)]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(rows), encoding="utf-8")
    rows = [f"{index}\t{sentence}\n" for index, sentence in enumerate(_sentences(10, 7))]
    (folder / "test.tsv").write_text("index\tsentence\n" + "".join(rows), encoding="utf-8")
