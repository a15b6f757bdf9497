"""Weights averaged by fairseq-train --store-ema, in all commands that can use them."""

import os
import tarfile
import tempfile
from types import SimpleNamespace

import pytest
import torch
from tiny_checkpoints import save

from luna_fairseq.commands import average_checkpoints
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import file_stamps
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.models import LunaModel
from luna_fairseq.translation.evaluation import Evaluation

NAME = "decoder.layers.0.fc1.bias"


@pytest.fixture
def trained(tmp_path):
    """Folder with two checkpoints: averaged weights that differ in one parameter, and no averaged weights."""
    path, data, model = save("translation", "one layer", tmp_path)
    state = torch.load(str(path), weights_only=False)
    torch.save(state, str(tmp_path / "without.pt"))
    average = {name: value.clone() for name, value in model.state_dict().items()}
    average[NAME] += 1
    state["extra_state"]["ema"] = average
    torch.save(state, str(path))
    return SimpleNamespace(folder=tmp_path, path=path, data=data, trained=model.state_dict()[NAME])


def averaged(words, trained):
    out = trained.folder / "out.pt"
    status = average_checkpoints.main(["--inputs", *map(str, words), "--output", str(out)])
    return torch.load(str(out), weights_only=False) if status == 0 else None


def test_averaging(trained, capsys):
    plain = averaged([trained.path], trained)
    state = averaged([trained.path, "--ema"], trained)
    assert torch.equal(plain["model"][NAME], trained.trained)
    assert torch.equal(state["model"][NAME], trained.trained + 1)
    assert "ema" not in state["extra_state"] and state["cfg"] == plain["cfg"]
    assert averaged([trained.folder / "without.pt", "--ema"], trained) is None
    assert "without.pt has no averaged weights: train with --store-ema" in capsys.readouterr().err


def test_exact_averages_are_preferred(trained):
    """A run in 16 bits stores its averages rounded, and in float32."""
    state = torch.load(str(trained.path), weights_only=False)
    averages = state["extra_state"]["ema"]
    state["extra_state"]["ema_fp32_params"] = {**averages, NAME: torch.full_like(averages[NAME], 7.0)}
    torch.save(state, str(trained.path))
    state = averaged([trained.path, "--ema"], trained)
    assert state["model"][NAME].unique().tolist() == [7.0]
    assert "ema_fp32_params" not in state["extra_state"]


def test_from_python(trained):
    words = str(trained.folder), trained.path.name, str(trained.data)
    for ema in (False, True):
        found = LunaModel.from_pretrained(*words, ema=ema).models[0].state_dict()[NAME]
        assert torch.equal(found, trained.trained + ema)
    with pytest.raises(InputError, match="without.pt has no averaged weights"):
        LunaModel.from_pretrained(words[0], "without.pt", words[2], ema=True)


@pytest.mark.parametrize("name", ["model.pt", "../model.pt", "{folder}/model.pt"])
def test_other_paths_from_python(name, trained, monkeypatch):
    """The checkpoint itself is not overwritten, and no copy of it remains."""
    temporary, other = trained.folder / "temporary", trained.folder / "other"
    temporary.mkdir(), other.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    folder = trained.folder if name == "model.pt" else other
    names = os.pathsep.join([name.format(folder=trained.folder)] * 2)
    before = trained.path.read_bytes()
    hub = LunaModel.from_pretrained(str(folder), names, str(trained.data), ema=True)
    assert trained.path.read_bytes() == before and not list(temporary.iterdir())
    assert all(torch.equal(model.state_dict()[NAME], trained.trained + 1) for model in hub.models)


def test_an_archive_from_python(trained):
    archive = trained.folder / "model.tar.gz"
    with tarfile.open(str(archive), "w:gz") as file:
        file.add(str(trained.path), "run/model.pt")
        file.add(str(trained.data), "run/data")
    hub = LunaModel.from_pretrained(str(archive), "model.pt", str(trained.data), ema=True)
    assert torch.equal(hub.models[0].state_dict()[NAME], trained.trained + 1)


def test_export(trained, capsys):
    transformers = pytest.importorskip("transformers")
    from luna_fairseq.huggingface import export

    words = ["--data", str(trained.data), "--ema", "--path"]
    assert export.main([str(trained.folder / "hf"), *words, str(trained.path)]) == 0
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        str(trained.folder / "hf"), trust_remote_code=True
    )
    assert torch.equal(model.state_dict()[f"luna.{NAME}"], trained.trained + 1)
    assert export.main([str(trained.folder / "hf2"), *words, str(trained.folder / "without.pt")]) == 1
    assert "without.pt has no averaged weights" in capsys.readouterr().err


def test_evaluation(trained):
    results = trained.folder / "results"
    results.mkdir()
    steps = FinishedSteps(results, "evaluate.json", ["scores.json"])
    evaluation = SimpleNamespace(
        path=trained.path,
        stamps=file_stamps([trained.path]),
        averaged=results / "ema.pt",
        steps=steps,
        _check_unchanged=lambda: None,
    )
    Evaluation._write_ema(evaluation)
    assert evaluation.path == results / "ema.pt"
    state = torch.load(str(results / "ema.pt"), weights_only=False)
    assert torch.equal(state["model"][NAME], trained.trained + 1)
