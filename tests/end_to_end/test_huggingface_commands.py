"""From a run to a folder of transformers', on to other weights, and back to a checkpoint of fairseq."""

import importlib
import logging

import pytest
import torch

from fairseq import checkpoint_utils

transformers = pytest.importorskip("transformers")


def command(name, *words):
    status = importlib.import_module(f"luna_fairseq.huggingface.{name}").main([str(word) for word in words])
    logging.disable(logging.NOTSET)
    return status


def test_there_and_back(trained, data, tmp_path, capsys):
    checkpoint = trained / "checkpoint_last.pt"
    export = [tmp_path / "hf", "--path", checkpoint, "--data", data]
    assert command("export", *export) == 0
    assert "AutoModelForSeq2SeqLM" in capsys.readouterr().out
    assert "| updates | 12 |" in (tmp_path / "hf" / "README.md").read_text(encoding="utf-8")
    options = {"trust_remote_code": True}
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(tmp_path / "hf"), **options)
    with torch.no_grad():
        model.luna.encoder.layers[0].fc1.bias.add_(1)
    model.save_pretrained(str(tmp_path / "tuned"))
    back = [tmp_path / "tuned", "--like", checkpoint, "--path", tmp_path / "back.pt"]
    assert command("import_checkpoint", *back) == 0
    old, new = (torch.load(str(p), weights_only=False)["model"] for p in (checkpoint, tmp_path / "back.pt"))
    checkpoint_utils.load_model_ensemble([str(tmp_path / "back.pt")], {"data": str(data)})
    moved = [name for name in old if not torch.equal(old[name], new[name])]
    assert moved == ["encoder.layers.0.fc1.bias"]
    assert command("import_checkpoint", *back) == 1
    model.resize_token_embeddings(model.config.vocab_size + 8)
    model.save_pretrained(str(tmp_path / "larger"))
    capsys.readouterr()
    assert command("import_checkpoint", tmp_path / "larger", *back[1:4], tmp_path / "other.pt") == 1
    assert "was fine-tuned with another vocabulary" in capsys.readouterr().err
