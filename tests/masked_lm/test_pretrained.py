"""Fine-tuning builds the same model as the pretrained checkpoint, for all options of the model."""

import json
from argparse import Namespace
from contextlib import nullcontext

import pytest
import torch
from tiny_luna import dictionary, perturb

from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY
from luna_fairseq.checks.model_options import command_line
from luna_fairseq.errors import InputError
from luna_fairseq.masked_lm.finetuning.evaluation import evaluate
from luna_fairseq.masked_lm.finetuning.prepared import PreparedTask
from luna_fairseq.masked_lm.finetuning.pretrained import PretrainedCheckpoint
from luna_fairseq.models import LunaMaskedLM

LUNA, ANCHORED, PEER = "luna_tiny_512", "luna_anchored_tiny_512", "peer_roberta_tiny"
MODELS = [
    [LUNA],
    [LUNA, "--untie-luna-kv", "--fix-projection-length", "--encoder-normalize-before"],
    [LUNA, "--untie-weights-luna", "--projection-length", "5"],
    [LUNA, "--anchored-packed", "--anchor-strength", "1", "--local-parts", "3"],
    [ANCHORED],
    [ANCHORED, "--local-parts", "0"],
    [LUNA, "--quant-noise-pq", "0.1"],
    [PEER, "--attention", "softmax", "--alibi", "--no-token-positional-embeddings"],
    [PEER, "--attention", "linformer", "--linformer-k", "6", "--linformer-sharing", "none"],
    [PEER, "--attention", "local", "--local-window", "3"],
    [PEER, "--attention", "linear", "--information-block", "--information-kernel", "4"],
    ["roberta", "--encoder-layers", "2", "--encoder-embed-dim", "16", "--encoder-attention-heads", "2"],
]


def build_model(words):
    """Return the model that ``--arch`` and further words name, and its options."""
    words = ["data", "--task", "masked_lm", "--arch", *words]
    args = options.parse_args_and_arch(options.get_training_parser(default_task="masked_lm"), words)
    task = Namespace(
        source_dictionary=dictionary(40), max_positions=lambda: args.tokens_per_sample, args=args
    )
    torch.manual_seed(1)
    return ARCH_MODEL_REGISTRY[args.arch].build_model(args, task).eval(), args


@pytest.mark.parametrize("words", MODELS, ids=" ".join)
def test_the_same_function(words, tmp_path):
    words = [*words, "--max-positions", "24", "--tokens-per-sample", "24"]
    model, args = build_model(words)
    state = perturb(model).state_dict()
    history = {"criterion_name": "MaskedLmLoss", "optimizer_name": "FairseqAdam", "num_updates": 1}
    checkpoint = {
        "args": args,
        "model": state,
        "optimizer_history": [{**history, "lr_scheduler_state": {}}],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
    }
    torch.save(checkpoint, str(tmp_path / "pretrained.pt"))
    pretrained = PretrainedCheckpoint.load(tmp_path / "pretrained.pt")
    pretrained.check_head("sentence_classification_head")
    refusal = pytest.raises(InputError, match="--head mean_classification_head reads the packed sequence P")
    with nullcontext() if isinstance(model, LunaMaskedLM) else refusal:
        pretrained.check_head("mean_classification_head")
    again, _ = build_model([*pretrained.options[1:], "--tokens-per-sample", "24"])
    assert set(again.state_dict()) == set(state)
    again.load_state_dict(state)
    tokens = torch.randint(4, 20, (2, 24))
    tokens[1, 17:] = 1
    assert torch.equal(again(tokens)[0], model(tokens)[0])


def test_options_without_an_effect_are_left_out():
    """A training would refuse them."""
    words = command_line({"arch": PEER, "attention": "linear", "linformer_k": 6, "local_window": 64})
    assert words == ["--arch", "peer_roberta", "--attention", "linear"]


def test_a_head_of_another_task_is_refused(tmp_path):
    """SST-2 and CoLA have two classes each, with the same names."""
    (tmp_path / "cola").mkdir()
    description = {"task": "CoLA", "examples": {}, "longest": {}, "labelled": []}
    (tmp_path / "cola" / "task.json").write_text(json.dumps(description), encoding="utf-8")
    task = {"_name": "sentence_prediction", "num_classes": 2, "data": str(tmp_path / "cola")}
    history = [{"criterion_name": "c", "best_loss": 1.0, "optimizer_name": "o", "num_updates": 1}]
    state = {"args": None, "cfg": {"model": {"_name": "luna_bert"}, "task": task}, "model": {}}
    extra = {"extra_state": {"epoch": 1, "train_iterator": {"epoch": 1}}, "optimizer_history": history}
    torch.save({**state, **extra}, str(tmp_path / "tuned.pt"))
    sst2 = PreparedTask(tmp_path, "SST-2", {"valid": 1}, {"valid": 1}, ["valid"])
    with pytest.raises(InputError, match="tuned.pt.*CoLA.*SST-2"):
        evaluate(sst2, tmp_path / "tuned.pt", "valid", 1)
