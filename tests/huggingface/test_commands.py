"""From a checkpoint to a folder of transformers', on to other weights, and back to a checkpoint."""

import importlib
import json
import logging

import pytest
import torch
from checkpoints import save

from fairseq import checkpoint_utils

transformers = pytest.importorskip("transformers")

CASES = [
    ("translation", "look-up diagonal decay", "AutoModelForSeq2SeqLM"),
    ("shared translation", "all", "AutoModelForSeq2SeqLM"),
    ("causal LM", "learned", "AutoModelForCausalLM"),
    ("masked LM", "local", "AutoModelForMaskedLM"),
    ("classifier", "mean", "AutoModelForSequenceClassification"),
]
TRUSTED = {"trust_remote_code": True}


def command(name, *words):
    status = importlib.import_module(f"luna_fairseq.huggingface.{name}").main([str(word) for word in words])
    logging.disable(logging.NOTSET)
    return status


@pytest.mark.parametrize(("kind", "variant", "auto"), CASES)
def test_there_and_back(kind, variant, auto, tmp_path, capsys):
    checkpoint, data, _ = save(kind, variant, tmp_path)
    export = ["--path", checkpoint, "--data", data, "--head", "none"]
    assert command("export", tmp_path / "hf", *export) == 0
    assert f"{auto}.from_pretrained" in capsys.readouterr().out
    model = getattr(transformers, auto).from_pretrained(str(tmp_path / "hf"), **TRUSTED)
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if name.endswith("fc1.bias")).add_(1)
    model.save_pretrained(str(tmp_path / "tuned"))
    back = [tmp_path / "tuned", "--like", checkpoint, "--path", tmp_path / "back.pt"]
    assert command("import_checkpoint", *back) == 0
    old, new = (torch.load(str(p), weights_only=False)["model"] for p in (checkpoint, tmp_path / "back.pt"))
    checkpoint_utils.load_model_ensemble([str(tmp_path / "back.pt")], {"data": str(data)})
    assert sum(not torch.equal(old[name], new[name]) for name in old) == 1
    assert command("import_checkpoint", *back) == 1
    if model.get_output_embeddings() is None:
        return
    model.resize_token_embeddings(model.config.vocab_size + 8)
    model.save_pretrained(str(tmp_path / "larger"))
    capsys.readouterr()
    assert command("import_checkpoint", tmp_path / "larger", *back[1:4], tmp_path / "other.pt") == 1
    assert "was fine-tuned with another vocabulary" in capsys.readouterr().err


def test_a_checkpoint_of_another_direction_is_refused(tmp_path, capsys):
    checkpoint, data, _ = save("translation", "tied", tmp_path)
    assert command("export", tmp_path / "hf", "--path", checkpoint, "--data", data) == 0
    state = torch.load(str(checkpoint), weights_only=False)
    state["args"].source_lang, state["args"].target_lang = "b", "a"
    torch.save(state, str(checkpoint))
    back = [tmp_path / "hf", "--like", checkpoint, "--path", tmp_path / "back.pt"]
    assert command("import_checkpoint", *back) == 1
    assert "was exported from another training than --like" in capsys.readouterr().err


def test_the_card_has_the_run_and_its_score(tmp_path, capsys):
    checkpoint, data, _ = save("translation", "tied", tmp_path)
    export = ["--path", checkpoint, "--data", data]
    scores = tmp_path / "results" / "scores.json"
    scores.parent.mkdir()
    score = {"name": "BLEU", "value": 27.304, "signature": "nrefs:1|tok:13a"}
    scores.write_text(json.dumps([score]), encoding="utf-8")
    assert command("export", tmp_path / "hf", *export) == 0
    card = (tmp_path / "hf" / "README.md").read_text(encoding="utf-8")
    assert "| updates | 12 |" in card and "| BLEU | 27.30 (`nrefs:1\\|tok:13a`) |" in card
    scores.write_text("{}", encoding="utf-8")
    assert command("export", tmp_path / "hf2", *export, "--scores", scores.with_name("none.json")) == 1
    scores.write_text("[1]", encoding="utf-8")
    assert command("export", tmp_path / "hf2", *export) == 1
    assert [line.partition(":")[2].strip() for line in capsys.readouterr().err.splitlines()] == [
        f"error: --scores {scores.with_name('none.json')} does not exist",
        f"error: {scores} holds no scores: give a scores.json of luna-evaluate",
    ]
