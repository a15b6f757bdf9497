"""Train tiny classifiers of Long Range Arena with fairseq's commands, including the authors' own."""

import itertools
import json
import random
import re

import numpy as np
import pytest
from commands import plugin, succeed
from saved_training import classes_in

from luna_fairseq.lra import seeds as lra_seeds
from luna_fairseq.lra.figure import Costs, read_curve
from luna_fairseq.lra.prepare import main as prepare
from luna_fairseq.lra.writing import write_images, write_tokens

SPLITS = {"train": 24, "valid": 8, "test": 8}
TINY = "--encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-attention-heads 4"
# Options of the authors' README with other sizes and numbers of updates.
AUTHORS = (
    "--seed 1 --ddp-backend c10d --find-unused-parameters --task long_range_arena --optimizer adam"
    " --adam-betas (0.9,0.98) --clip-norm 0.0 --encoder-projection-length 16 --lr-scheduler inverse_sqrt"
    " --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric --sentence-avg --update-freq 1"
    " --criterion lra_cross_entropy --warmup-init-lr 1e-07 --keep-last-epochs 10 --log-format simple"
    f" --log-interval 100 --num-workers 0 --batch-size 8 --max-update 4 {TINY}"
)
LISTOPS = "-a luna_lra_listop --lr 0.0001 --apply-bert-init --encoder-layers 1 --weight-decay 0.0001"
LISTOPS += " --warmup-updates 1000"
CIFAR10 = "-a luna_lra_cifar10 --lr 0.005 --dropout 0.3 --attention-dropout 0.1 --warmup-updates 4000"
CIFAR10 += " --weight-decay 0.0"
AAN = "-a luna_lra_aan --lr 0.0005 --weight-decay 0.0001 --warmup-updates 8000"


def accuracy(log):
    return float(re.findall(r"\| accuracy ([\d.]+)", log)[-1])


@pytest.fixture(scope="module")
def listops(tmp_path_factory):
    folder = tmp_path_factory.mktemp("listops") / "data"
    sizes = [word for split, number in SPLITS.items() for word in (f"--{split}", str(number))]
    words = ["listops", "--destdir", str(folder), *sizes]
    assert prepare([*words, *"--min-length 5 --max-length 40 --workers 1".split()]) == 0
    return folder


def tokens(folder, pairs=False):
    """Write random byte sequences, or pairs of them, as a data folder."""
    generator = random.Random(1)
    splits = [split for split, number in SPLITS.items() for _ in range(number)]
    texts = [[[generator.randrange(256) for _ in range(12)] for _ in range(1 + pairs)] for _ in splits]
    examples = [(split, text, generator.randrange(2)) for split, text in zip(splits, texts)]
    write_tokens(folder, [str(n) for n in range(256)], 2, examples, pairs)
    return folder


@pytest.mark.slow
def test_the_authors_listops_command(listops, tmp_path):
    half = "--bf16 --fp16-no-flatten-grads --cpu --save-dir"  # the authors use --fp16, which needs a GPU
    log = succeed("train", *plugin(listops), AUTHORS, LISTOPS, half, tmp_path)
    assert "num_updates: 4 >= max_update: 4" in log
    best = tmp_path / "checkpoint_best.pt"
    assert not any("luna" in name for name in classes_in(best))
    words = "--task long_range_arena --valid-subset test --batch-size 8 --log-format simple --cpu --path"
    assert 0 <= accuracy(succeed("validate", *plugin(listops), words, best)) <= 100
    log = succeed("train", *plugin(listops), AUTHORS, LISTOPS, "--max-update 6", half, tmp_path)
    assert "Loaded checkpoint" in log and "num_updates: 6 >= max_update: 6" in log


@pytest.mark.parametrize("command, pairs", [(CIFAR10, False), (AAN, True)])
def test_the_authors_other_commands(tmp_path, command, pairs):
    data = tokens(tmp_path / "data", pairs)
    log = succeed("train", *plugin(data), AUTHORS, command, "--cpu --save-dir", tmp_path)
    assert "num_updates: 4 >= max_update: 4" in log


def pixels(folder):
    images = np.random.RandomState(1).randint(0, 256, (40, 16)).astype(np.uint8)
    splits = [split for split, number in SPLITS.items() for _ in range(number)]
    write_images(folder, 2, [(split, image, image[0] % 2) for split, image in zip(splits, images)])
    return folder


@pytest.mark.parametrize(
    "options",
    [
        "--task lra-image --input-type image --use-p --bf16 -a luna_lra_pf32",
        pytest.param(
            "--task lra-image --input-type image -a transformer_lra_cifar10 --checkpoint-activations",
            marks=pytest.mark.slow,
        ),
        # As in the authors' README, with pixels as tokens.
        "--task lra-text --input-type text -a luna_lra_cifar10",
        pytest.param("--task lra-text --input-type text -a luna_lra_pf32", marks=pytest.mark.slow),
    ],
)
def test_images(tmp_path, options):
    data = plugin(pixels(tmp_path / "data"))
    log = succeed("train", *data, AUTHORS, "--lr 0.001 --cpu --save-dir", tmp_path, options)
    assert "num_updates: 4 >= max_update: 4" in log
    words = f"{options.split(' --input-type')[0]} --valid-subset test --batch-size 8 --log-format simple"
    log = succeed("validate", *data, words, "--cpu --path", tmp_path / "checkpoint_best.pt")
    assert 0 <= accuracy(log) <= 100


@pytest.mark.slow
def test_seeds(listops, tmp_path, capsys):
    options = ["--", *TINY.split(), "--max-update", "2", "--num-workers", "0", "--cpu"]
    words = ["listops", str(listops), "--out", str(tmp_path), *"--models luna-4-p --seeds 1".split()]
    words += options
    assert lra_seeds.main(words) == 0
    first = capsys.readouterr().out
    assert re.search(r"\| Luna-4, P \| [\d.]+ \(1\) \|", first)
    assert lra_seeds.main(words) == 0  # nothing is left to do
    assert capsys.readouterr().out == first
    assert lra_seeds.main([*words[:-1], "--max-update", "3"]) == 1
    assert "--max-update 2 before, --max-update 3 now" in capsys.readouterr().err

    costs = {"transformer-softmax": 1.0, "luna-4": 1.5}
    costs_file, figure = tmp_path / "lra.json", tmp_path / "figure.png"
    records = []
    for length, (form, speed) in itertools.product((1, 2), costs.items()):
        ratio = {"transformer-softmax": {"median": speed * length}}
        records.append({"case": {"T": length}, "form": form, "speed_ratio": ratio, "extra_bytes": 2**20})
    costs_file.write_text(json.dumps({"lra": {"results": records}}))
    drawing = [*words[: words.index("--")], "--figure", str(figure), "--costs", str(costs_file)]
    curves = tmp_path / "curves.png"
    assert lra_seeds.main([*drawing, "--curves", str(curves), *options]) == 0
    assert figure.read_bytes().startswith(b"\x89PNG") and curves.read_bytes().startswith(b"\x89PNG")
    curve = read_curve(tmp_path / "listops" / "luna-4-p" / "seed-1" / "train.log")
    assert max(curve) == 2 and 0 <= curve[2] <= 100
    capsys.readouterr()
    read = Costs(costs_file)
    assert (read.length, read.by_model) == (2, {"transformer-softmax": (2.0, 1.0), "luna-4": (3.0, 1.0)})
    drawing[drawing.index("luna-4-p")] = "luna-8"
    assert lra_seeds.main([*drawing, *options]) == 1
    assert "luna-8" in capsys.readouterr().err
    costs_file.write_text(json.dumps({"train": {}}))
    assert lra_seeds.main([*drawing, *options]) == 1
    assert "transformer-softmax" in capsys.readouterr().err


def test_a_diverging_seed_does_not_keep_others_from_training(forked_commands, listops, tmp_path, capfd):
    words = ["listops", str(listops), "--out", str(tmp_path), *"--models luna-4-p --seeds 1 2 --".split()]
    words += [*TINY.split(), "--max-update", "9", "--num-workers", "0", "--cpu"]
    words += ["--lr", "1e30", "--lr-scheduler", "fixed", "--warmup-updates", "0"]
    assert lra_seeds.main(words) == 1
    said = capfd.readouterr()
    assert "luna-4-p, seed 1; luna-4-p, seed 2" in said.err
    assert [f"luna-4-p, seed {seed} diverged" in said.out for seed in (1, 2)] == [True, True]


def test_every_kind_of_model_has_its_own_line_of_the_table():
    models = ["luna-16-anchored-p", "peer-linear", "luna-128", "luna-16-p", "transformer", "peer-abc"]
    results = [lra_seeds.Result("ListOps", model, 1, float(k), []) for k, model in enumerate(models)]
    lines = [line.split("|")[1:3] for line in lra_seeds.format_table(results).splitlines()[2:]]
    assert [[cell.strip() for cell in line] for line in lines] == [
        ["Transformer", "4.00 (1)"],
        ["abc", "5.00 (1)"],
        ["linear", "1.00 (1)"],
        ["Luna-16, P", "3.00 (1)"],
        ["Luna-128", "2.00 (1)"],
        ["anchored Luna-16, P", "0.00 (1)"],
    ]
    words = lra_seeds.model_options("luna-16-anchored-p", "listop")
    assert words == "--arch luna_anchored_lra_listop --encoder-projection-length 16 --use-p".split()
