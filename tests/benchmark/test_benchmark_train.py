"""The training sub-command at tiny sizes. No test looks at a clock."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from benchmark_checks import (  # noqa: F401
    check_png,
    check_refused,
    check_results,
    needs_sdpa,
    no_children,
    run_command,
)

from fairseq.modules import MultiheadAttention
from luna_fairseq.benchmark import __main__ as command
from luna_fairseq.benchmark import attentions
from luna_fairseq.benchmark.measure import Settings
from luna_fairseq.benchmark.options import BatchSize
from luna_fairseq.benchmark.peers import MODELS
from luna_fairseq.benchmark.task import lay_out
from luna_fairseq.benchmark.training_tasks import Classify, MaskedLM
from luna_fairseq.models.luna_classifier import ARCHITECTURES
from luna_fairseq.peers import ATTENTIONS
from luna_fairseq.peers.peer_lra import ARCHITECTURES as PEER_ARCHITECTURES

TRAIN = "train --preset small --dictionary-size 40 --batch 2x5 --repetitions 2".split()


@needs_sdpa
def test_train_as_a_process(tmp_path):
    path, picture = tmp_path / "train.json", tmp_path / "train.png"
    command = [sys.executable, "-m", "luna_fairseq.benchmark", "--threads", "1", *TRAIN]
    command += ["--projection-length", "2", "--json", str(path), "--plot", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (
        "tokens/s" in done.stdout and "speed / transformer-sdpa" in done.stdout and "DEBUG" not in done.stderr
    )
    check_png(picture)
    values = json.loads(path.read_text())
    assert values["environment"]["threads"] == 1
    lunas = ["luna-2-tied", "luna-2-untied", "luna-2-anchored"]
    check_results(values["train"], ["transformer", "transformer-sdpa", *lunas], cases=1)
    for result in values["train"]["results"]:
        assert result["tokens_per_second"] == pytest.approx(10 / result["seconds"]["median"])
        # At least the gradients of the embedding and of the feed-forward blocks.
        assert result["extra_bytes"] > 6 * 2 * 256 * 1024 * 4


def test_forms_that_read_the_source_itself(tmp_path, no_children):  # noqa: F811
    forms = ["luna-6-anchored", "luna-6-no-look-up", "luna-6-softmax-cross"]  # a look-up leaves two parts out
    options = [*TRAIN, "--projection-length", "6", "--with", *forms]
    options += ["--without", "transformer-sdpa", "luna-6-tied", "luna-6-untied"]
    check_results(run_command(options, tmp_path)["train"], ["transformer", *forms], cases=1)


TINY = {"layers": 2, "embed_dim": 8, "ffn_embed_dim": 8, "attention_heads": 2}
SMALL_BATCHES = "--batch 2x40 1x9 --projection-length 2 3 --dtype bfloat16".split()


@needs_sdpa
def test_classify(tmp_path, no_children, monkeypatch):  # noqa: F811
    monkeypatch.setitem(Classify.presets, "base", TINY)
    section = run_command(["train", "--task", "classify", *SMALL_BATCHES], tmp_path)["train"]
    check_results(section, ["transformer-softmax", "transformer-sdpa", "luna-2", "luna-3"], cases=2)
    assert section["results"][0]["case"] == {"sentences": 2, "T": 40}


@needs_sdpa
def test_masked_lm(tmp_path, no_children, monkeypatch):  # noqa: F811
    monkeypatch.setitem(MaskedLM.presets, "base", TINY)
    section = run_command(
        ["train", "--task", "masked-lm", "--dictionary-size", "40", *SMALL_BATCHES], tmp_path
    )["train"]
    lunas = [f"luna-{n}-{kind}" for n in (2, 3) for kind in ("tied", "untied", "anchored")]
    check_results(section, ["roberta-softmax", "roberta-sdpa", *lunas], cases=2)


def test_lra(tmp_path, no_children, monkeypatch):  # noqa: F811
    monkeypatch.setitem(Classify.presets, "base", TINY)
    section = run_command(["lra", "--batch", "1x12", "--without", "luna-16", "transformer-sdpa"], tmp_path)[
        "lra"
    ]
    check_results(section, ["transformer-softmax", "luna-128", "luna-256"], cases=1)


@needs_sdpa
def test_models_of_long_range_arena_are_timed():
    """The classifiers are those that luna_lra_imdb and transformer_lra_imdb train, of the same size."""
    task = Classify(command.build_parser().parse_args(["lra"]), Settings(2, 1, "cpu", 1))
    rows = task.rows()
    always = [name for name, row in rows.items() if not row.optional]
    assert always == ["transformer-softmax", "transformer-sdpa", "luna-16", "luna-128", "luna-256"]
    assert {"peer-softmax-alibi", *(f"peer-{name}" for name in ATTENTIONS)} == set(rows) - set(always)
    for row in rows.values():
        model = task.make_model(row, BatchSize(1, 8))
        architecture = row.architectures["classify"]
        for name, value in {**ARCHITECTURES, **PEER_ARCHITECTURES}[architecture].items():
            assert getattr(model.args, name) == value, name


@needs_sdpa
@pytest.mark.parametrize("kwargs", [{"self_attention": True}, {"encoder_decoder_attention": True}])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_is_fairseqs(kwargs, padded, causal):
    if causal and "encoder_decoder_attention" in kwargs:
        pytest.skip("no decoder has such an attention")
    torch.manual_seed(1)
    theirs = MultiheadAttention(12, 3, dropout=0.3, **kwargs).double().eval()
    ours = attentions.FusedAttention.in_place_of(theirs)
    assert not ours.training and ours.dropout_module.p == 0.3
    query = torch.randn(6, 2, 12, dtype=torch.double)
    key = query if "self_attention" in kwargs else torch.randn(5, 2, 12, dtype=torch.double)
    mask = torch.zeros(2, key.size(0), dtype=torch.bool)
    mask[1, 4:] = True
    options = {"key_padding_mask": mask if padded else None}
    if causal:
        options["attn_mask"] = torch.full((6, 6), float("-inf"), dtype=torch.double).triu(1)
    expected = theirs(query, key, key, need_weights=False, **options)[0]
    torch.testing.assert_close(ours(query, key, key, **options)[0], expected)
    attentions.use_written_out_attention(theirs)
    torch.testing.assert_close(theirs(query, key, key, need_weights=False, **options)[0], expected)


@needs_sdpa
@pytest.mark.parametrize(
    "arguments, wrong",
    [
        (TRAIN, "transformer-sdpa"),
        (["train", "--task", "classify"], "transformer-sdpa"),
        (["train", "--task", "masked-lm", "--preset", "small", "--dictionary-size", "40"], "roberta-sdpa"),
    ],
    ids=["translate", "classify", "masked-lm"],
)
def test_wrong_model_is_refused(arguments, wrong, monkeypatch, capsys):
    class Wrong(attentions.FusedAttention):
        def forward(self, *args, **kwargs):
            return 1.01 * super().forward(*args, **kwargs)[0], None

    monkeypatch.setattr(attentions, "FusedAttention", Wrong)
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("was timed"))
    check_refused(arguments, [f"{wrong} is not timed", "differs from that of the written-out model"], capsys)


def test_wrong_backend_is_refused(monkeypatch, capsys):
    from luna_fairseq.modules import luna_causal_attention as module

    right = module.causal_luna

    def wrong(*args, backend, **kwargs):
        return right(*args, backend=backend, **kwargs) * (1.0 if backend == "naive" else 1.01)

    monkeypatch.setattr(module, "causal_luna", wrong)
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("was timed"))
    check_refused([*TRAIN, "--without", "transformer-sdpa"], ["luna-16-tied is not timed"], capsys)


@pytest.mark.parametrize(
    "arguments, name",
    [(TRAIN, "luna-16-tied"), (["train", "--task", "classify"], "luna-16"), (["lra"], "luna-16")],
    ids=["translate", "classify", "lra"],
)
def test_wrong_encoder_attention_is_refused(arguments, name, monkeypatch, capsys):
    from luna_fairseq.modules import luna_attention as module

    right = module.luna_attention
    monkeypatch.setattr(module, "luna_attention", lambda *args: 1.01 * right(*args))
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("was timed"))
    check_refused([*arguments, "--without", "transformer-sdpa"], [f"{name} is not timed"], capsys)


def test_preset_of_the_other_tasks_is_refused(capsys):
    arguments = ["train", "--task", "classify", "--preset", "small"]
    check_refused(arguments, ["--preset small: --task classify has only base"], capsys)


@pytest.mark.parametrize(
    "arguments, name",
    [
        (["causal"], "sdpa"),
        (["attention"], "sdpa"),
        ([*TRAIN, "--without", "luna-16-tied"], "transformer-sdpa"),
    ],
)
def test_what_an_old_torch_has_not_is_left_out(arguments, name, monkeypatch):
    monkeypatch.delattr(torch.nn.functional, "scaled_dot_product_attention", raising=False)
    args = command.build_parser().parse_args(arguments)
    task = command.COMMANDS[args.command].of(args, Settings(2, 1, "cpu", 1))
    monkeypatch.setattr(task, "check", lambda rows: None)
    section, cases, _ = lay_out(task)
    assert name not in section.peers and all(form.name != name for _, forms in cases for form in forms)
    assert any(name in note and "has no scaled_dot_product_attention" in note for note in section.notes)


def test_optional_rows_are_measured_where_they_are_asked_for(tmp_path, no_children, monkeypatch):  # noqa: F811
    monkeypatch.setitem(MODELS, "transformer", replace(MODELS["transformer"], optional=True))
    options = ["--without", "transformer-sdpa", "luna-16-untied", "luna-16-anchored"]
    (tmp_path / "with").mkdir()
    section = run_command([*TRAIN, *options], tmp_path / "with")["train"]
    check_results(section, ["luna-16-tied"], cases=1)
