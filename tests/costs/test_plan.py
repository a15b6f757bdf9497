"""luna-plan: parameters against built models, growth with length, recorded training steps, bad input."""

import json
import warnings
from argparse import Namespace
from pathlib import Path

import pytest
from tiny_luna import Task

from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from luna_fairseq.commands.count_parameters import count_parameters
from luna_fairseq.commands.recipes import read_recipe
from luna_fairseq.costs.gpus import GPUS
from luna_fairseq.costs.memory import memory
from luna_fairseq.costs.model import Batch, Model, Stack, model_of, parameters, step_work
from luna_fairseq.costs.plan import main, resolve
from luna_fairseq.costs.step import communication, step
from luna_fairseq.models import LunaModel

RECORDS = Path(__file__).resolve().parents[2] / "docs" / "results" / "epyc-2-cores"
BASE = Stack(6, 512, 2048, 8)
MODELS = {
    "luna-16-tied": Model(BASE, BASE, 32000, 1, 0, True, 16),
    "transformer-sdpa": Model(BASE, BASE, 32000, 1, 0, False),
}


@pytest.mark.parametrize(
    "name",
    [
        "luna_16_softplus_tied",
        "luna_32_softplus_untied",
        "luna_16_softplus_tied_non_contextual",
        "transformer_base_adam",
        "luna_16_anchored",
        "luna_16_anchored_softmax_cross",
        "bitext/small_anchored",
        "bitext/small_anchored_softmax_cross",
        "masked_lm/small",
        "masked_lm/small_anchored",
    ],
)
def test_parameters_are_those_of_the_built_model(name):
    recipe, size = read_recipe(name), 100
    args, kind = resolve(recipe, [])
    model = model_of(args, kind, size)
    if model.decoder is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            built = sum(count_parameters(recipe, size).values())
    else:
        dictionary = Dictionary()
        for i in range(size - len(dictionary)):
            dictionary.add_symbol(f"w{i}")
        task = Namespace(source_dictionary=dictionary, max_positions=lambda: args.tokens_per_sample)
        found = ARCH_MODEL_REGISTRY[args.arch].build_model(args, task)
        built = sum(p.numel() for p in found.parameters())
    assert parameters(model) == built


@pytest.mark.parametrize("untied", [False, True])
@pytest.mark.parametrize("non_contextual", [False, True])
@pytest.mark.parametrize(
    "cross",
    [
        {},
        {"packed_lookup": 2},
        {"packed_lookup": 2, "share_token_projections": True},
        {"cross_attention": "softmax"},
    ],
)
@pytest.mark.parametrize("anchors", [[], ["anchored_packed"], ["anchored_packed", "diagonal_prior"]])
def test_parameters_of_every_attention_to_the_source(untied, non_contextual, cross, anchors):
    if "packed_lookup" in cross and not anchors:
        pytest.skip("a look-up needs anchors")
    args = Namespace(untie_luna_kv=untied, non_contextual_packed=non_contextual, share_all_embeddings=True)
    vars(args).update(dict.fromkeys(anchors, True), **cross)
    for side, layers in (("encoder", 2), ("decoder", 3)):
        sizes = {"layers": layers, "embed_dim": 12, "ffn_embed_dim": 20, "attention_heads": 2}
        vars(args).update({f"{side}_{name}": value for name, value in sizes.items()})
    ARCH_CONFIG_REGISTRY["luna"](args)
    task = Task()
    task.target_dictionary = task.source_dictionary
    built = LunaModel.build_model(args, task)
    expected = sum(parameter.numel() for parameter in built.parameters())
    assert parameters(model_of(args, "luna", len(task.source_dictionary))) == expected


def test_memory_is_linear_and_attention_of_the_transformer_quadratic():
    short, long = Batch(1, 8192), Batch(1, 16384)
    for name, model in MODELS.items():
        kept = [memory(model, batch, "bfloat16", "adam")["activations"] for batch in (short, long)]
        assert kept[1] == pytest.approx(2 * kept[0], rel=1e-3)
        work = [step_work(model, batch, "bfloat16")["attention"].flops["bfloat16"] for batch in (short, long)]
        assert work[1] == pytest.approx((2 if "luna" in name else 4) * work[0])


def recorded(name):
    for row in json.loads((RECORDS / f"{name}.json").read_text())["train"]["results"]:
        if row["form"] in MODELS:
            yield row["form"], Batch(row["case"]["sentences"], row["case"]["T"]), row


@pytest.mark.parametrize("name", ["train", "train_4096"])
def test_recorded_steps_come_out_as_the_docs_say(name):
    rows = list(recorded(name))
    assert len(rows) == (6 if name == "train" else 2)
    for form, batch, row in rows:
        found = step(MODELS[form], batch, GPUS["cpu"], "float32", "adam", 1, 1, 1)
        assert sum(found.parts.values()) == pytest.approx(row["seconds"]["median"], rel=0.03), (form, batch)
        needed = memory(MODELS[form], batch, "float32", "adam")
        assert needed["activations"] + needed["logits"] == pytest.approx(row["extra_bytes"], rel=0.105)


def test_a_window_takes_as_much_more_memory_as_was_recorded():
    rows = json.loads((RECORDS.parent / "xeon-2-cores" / "masked_lm.json").read_text())["train"]["results"]
    recorded = {row["form"]: row["extra_bytes"] for row in rows}
    kept = []
    for parts in (0, 3):
        model = Model(Stack(4, 256, 1024, 4), None, 4000, 1, 128, True, 32, anchored=True, local_parts=parts)
        needed = memory(model, Batch(32, 128, 1 / 7), "float32", "adam")
        kept.append(needed["activations"] + needed["logits"])
    expected = recorded["luna-32-anchored"] - recorded["luna-32-tied"]
    assert kept[1] - kept[0] == pytest.approx(expected, rel=0.05)


def test_what_is_sent():
    a100 = GPUS["a100"]
    assert communication(1e9, a100, 1, 1) == 0
    assert communication(1e9, a100, 1, 8) == pytest.approx(2 * 7 / 8 * 1e9 / a100.link)
    assert communication(1e9, a100, 8, 8) > communication(1e9, a100, 2, 8) > communication(1e9, a100, 1, 8)


def test_the_table(capsys):
    assert main(["luna_16_softplus_tied", "--gpu", "a100", "--length", "512", "65536"]) == 0
    head, _, short, long, trust = capsys.readouterr().out.splitlines()
    assert "1 x 8 A100" in head and "69.6M parameters, apollo, bfloat16, 500,000 updates" in head
    assert short.split()[:5] == ["512", "16", "x", "1", "65,536"] and long.split()[:4] == [
        "65,536",
        "1",
        "x",
        "1",
    ]
    assert trust.startswith("How far to trust it: ")


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ["luna_16_softplus_tied", "--gpu", "k80"],
            "--gpu k80 is not known; known are v100, a100, h100, h200",
        ),
        (["luna_16_softplus_tied", "--gpu", "v100", "--length", "65536"], "lower --length to 16,384, or add"),
        (["luna_99"], "there is no recipe luna_99"),
        (["rfa_256_adam"], "the model peer_transformer is not counted; those counted are luna, "),
        (["luna_16_softplus_tied", "--optimizer", "sgd"], "--optimizer sgd is not counted"),
        (
            ["luna_16_softplus_tied", "--gpu", "v100", "--encoder-embed-dim", "32768", "--length", "1"],
            "go to the parameters: lower --encoder-embed-dim or --encoder-layers",
        ),
    ],
)
def test_bad_input_gets_one_line(words, said, capsys):
    assert main(words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("luna-plan: error: ") and said in line
