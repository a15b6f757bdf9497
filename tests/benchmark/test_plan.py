"""luna-plan: counted steps against products by hand, public figures, recorded steps; bad input."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from luna_fairseq.benchmark import plan
from luna_fairseq.benchmark.__main__ import TASKS, build_parser
from luna_fairseq.benchmark.counting import count_step
from luna_fairseq.benchmark.gpus import GPUS, occupancy
from luna_fairseq.benchmark.task import BatchSize
from luna_fairseq.commands.count_parameters import count_parameters
from luna_fairseq.commands.recipes import read_recipe

pytest.importorskip("torch.utils.flop_counter", reason="needs torch 2.1 or later")
RECORDS = Path(__file__).resolve().parents[2] / "docs" / "results" / "epyc-2-cores"


def resolved(words):
    return plan.resolve(*plan.build_parser().parse_known_args(words.split()))


def planned(name, batch, words="", gpu="v100"):
    """A step of the recipe of that name, with two layers."""
    layers = "--encoder-layers 2" if name.startswith("masked") else "--encoder-layers 2 --decoder-layers 2"
    args = resolved(f"{name} --gpu {gpu} --dictionary-size 100 {layers} {words}")
    return plan.count(args, BatchSize(*batch))


def parameters(name):
    """Of its model, as it is built."""
    recipe = read_recipe(name)
    model = {**recipe.settings["model"], "encoder_layers": 2, "decoder_layers": 2}
    recipe = replace(recipe, settings={**recipe.settings, "model": model})
    return sum(count_parameters(recipe, 100).values())


def counted(row, batch, words="train", dtype=torch.float32):
    task = TASKS["train"](build_parser().parse_args([*words.split(), "--device", "meta"]))
    row = task.rows()[row]
    return count_step(lambda: task.make_model(row, batch.T), lambda m: task.loss(m, batch)(), dtype)


def flops(step):
    return sum(operation.flops for operation in step.operations)


def test_operations_are_those_of_every_weight_that_a_token_meets():
    """Six for each weight, three passes of two; and attention."""
    step = counted("transformer-sdpa", BatchSize(4, 256))
    weights = 6 * (4 + 8) * 512**2 + 12 * 2 * 512 * 2048 + 32000 * 512
    attention = 6 * 7 * 256 * 512 * 2 * 3  # torch counts causal attention whole
    assert flops(step) == pytest.approx(4 * 256 * (6 * weights + attention), rel=1e-3)
    assert step.parameters == 60522496


@pytest.mark.parametrize(
    "name",
    """luna_16_softplus_tied luna_16_anchored luna_16_anchored_softmax_cross transformer_base_adam
    rfa_256_adam masked_lm/small masked_lm/small_anchored""".split(),
)
def test_every_kind_of_model_is_counted(name):
    step = planned(name, (2, 64))
    assert flops(step) > 1e8 and step.kept > 1e6 and step.parameters > 1e6
    assert name.startswith("masked") or step.parameters == parameters(name)


def test_the_form_of_causal_attention_is_the_fused_one_where_nothing_else_is_said():
    """Whatever the clock says, and however often; a form that is named is taken."""
    pytest.importorskip("triton", reason="the kernels are noted where triton is")
    counts = []
    for words in ("", "", "--luna-backend triton", "--luna-backend chunk", "--projection-length 300"):
        counts.append(len(planned("luna_16_softplus_tied", (1, 512), words, "a100").operations))
    assert len(set(counts[:3])) == 1 and min(counts[3:]) > 1.2 * counts[0]


def test_luna_is_linear_in_length_and_the_transformer_quadratic():
    words = "train --preset small --dictionary-size 100"
    for name, is_linear in (("luna-16-tied", True), ("transformer-sdpa", False)):
        steps = [counted(name, BatchSize(1, T), words) for T in (256, 512, 1024)]
        one, two, four = map(flops, steps)
        assert ((four - two) / (two - one) < 2.1) == is_linear
        assert steps[2].kept < 2.1 * steps[1].kept


def test_checkpointed_activations_are_fewer_and_computed_again():
    plain, again = (
        planned("luna_16_softplus_tied", (4, 64), words) for words in ("", "--checkpoint-activations")
    )
    assert again.kept < 0.6 * plain.kept and flops(again) > 1.2 * flops(plain)


PUBLIC = [("half", 4, 160_000, 1.2), ("float32", 4, 73_000, 1.1), ("float32", 8, 134_000, 1.15)]


@pytest.mark.parametrize("dtype, gpus, published, factor", PUBLIC)
def test_public_figures_come_out_as_the_docs_say(dtype, gpus, published, factor):
    words = f"transformer_base_adam --gpu v100 --gpus-per-node {gpus} --dtype {dtype}"
    found = plan.plan(resolved(words))
    assert 1 / factor < found.tokens / sum(found.seconds.values()) / published < factor


@pytest.mark.parametrize("name", ["train", "train_4096"])
def test_recorded_steps_come_out_as_the_docs_say(name):
    for row in json.loads((RECORDS / f"{name}.json").read_text())["train"]["results"]:
        if row["form"] in ("luna-16-tied", "transformer-sdpa"):
            step = counted(row["form"], BatchSize(row["case"]["sentences"], row["case"]["T"]))
            words = "transformer_base_adam --gpu cpu --dtype float32 --gpus-per-node 1"
            found = plan.seconds(step, resolved(words), passes=1)
            assert found["products"] + found["bytes"] == pytest.approx(row["seconds"]["median"], rel=0.08)
            extra = step.kept + 4 * step.parameters + step.largest
            assert extra == pytest.approx(row["extra_bytes"], rel=0.2)


def test_the_table(capsys):
    assert plan.main(["luna_16_softplus_tied", "--gpu", "a100", "--length", "512", "16384"]) == 0
    head, _, _, short, long, _, trust = capsys.readouterr().out.splitlines()
    assert "1 x 8 A100" in head and "69.6M parameters, apollo, bfloat16, 500,000 updates" in head
    assert short.replace("|", "").split()[:5] == ["512", "16", "x", "1", "65,536"]
    assert long.startswith("| 16,384 ")
    assert trust.startswith("How far to trust it: ")


@pytest.mark.parametrize(
    "words, said",
    [
        ("luna_16_softplus_tied --gpu k80", "argument --gpu: invalid choice: 'k80' (choose from "),
        ("transformer_base_adam --gpu v100 --length 30 131072", "lower --length to"),
        ("luna_99", "there is no recipe luna_99"),
        ("lra/text", "--task lra-text is not counted"),
        ("luna_16_softplus_tied --optimizer sgd", "--optimizer sgd is not counted"),
        (
            "transformer_base_adam --gpu v100 --encoder-embed-dim 32768 --length 1",
            "lower --encoder-embed-dim",
        ),
    ],
)
def test_bad_input_gets_one_line(words, said, capsys):
    with pytest.raises(SystemExit) as end:
        sys.exit(plan.main(words.split()))
    assert end.value.code == (2 if said.startswith("argument ") else 1)
    captured = capsys.readouterr()
    line = captured.err.splitlines()[-1]
    assert line.startswith("luna-plan: error: ") and said in line
    assert ("| 30 " in captured.out) == ("--length 30" in words)  # what fits is told before


@pytest.mark.parametrize(
    "registers, shared, warps, programs, limit",
    [(255, 0, 4, 2, "registers"), (32, 50 * 1024, 4, 3, "shared memory"), (24, 0, 8, 8, "warps")],
)
def test_occupancy_of_an_a100(registers, shared, warps, programs, limit):
    found = occupancy(GPUS["a100"], registers, shared, warps)
    assert found == (programs, limit)
