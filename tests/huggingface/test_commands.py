"""Export of a checkpoint, fine-tuning of the exported model, and import as a checkpoint."""

import json
import re
from argparse import Namespace

import pytest
import tiny_masked_lm
import torch
from every_kind import VARIANTS
from tiny_checkpoints import command, save
from tiny_luna import OPTIONS, Task, build_perturbed
from tiny_models import LM_OPTIONS, LM_VARIANTS, classifier, language_model

from fairseq import checkpoint_utils
from luna_fairseq.errors import InputError
from luna_fairseq.files.scores import describe_checkpoint, write_scores
from luna_fairseq.huggingface import checkpoint as checkpoint_module
from luna_fairseq.huggingface.model_card import find_scores
from luna_fairseq.models import LunaLanguageModel, LunaModel
from luna_fairseq.peers.models import PeerTransformer
from luna_fairseq.peers.rnn_attention import RnnAttentionModel

transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

CASES = [
    ("translation", "look-up diagonal decay", "AutoModelForSeq2SeqLM"),
    ("shared translation", "all", "AutoModelForSeq2SeqLM"),
    ("causal LM", "learned", "AutoModelForCausalLM"),
    ("masked LM", "local", "AutoModelForMaskedLM"),
    ("classifier", "mean", "AutoModelForSequenceClassification"),
]
TRUSTED = {"trust_remote_code": True}


def exported(kind, variant, folder):
    """Export a checkpoint to the subfolder hf.

    Returns:
        path of the checkpoint, options of the export, and arguments of the import up to ``--path``
    """
    checkpoint, data, _ = save(kind, variant, folder)
    export = ["--path", checkpoint, "--data", data]
    assert command("export", folder / "hf", *export, "--head", "none") == 0
    return checkpoint, export, [folder / "hf", "--like", checkpoint, "--path"]


def weights(path):
    return torch.load(str(path), weights_only=False)["model"]


@pytest.mark.parametrize(("kind", "variant", "auto"), CASES)
def test_export_and_import(kind, variant, auto, tmp_path, capsys):
    checkpoint, (*_, data), _ = exported(kind, variant, tmp_path)
    assert f"{auto}.from_pretrained" in capsys.readouterr().out
    model = getattr(transformers, auto).from_pretrained(str(tmp_path / "hf"), **TRUSTED)
    if kind == "classifier":
        assert model.config.id2label == {number: f"w{number}" for number in range(model.config.num_labels)}
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if name.endswith("fc1.bias")).add_(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "hf"), **TRUSTED)
    for one in (model, tokenizer):
        one.save_pretrained(str(tmp_path / "tuned"))
    back = [tmp_path / "tuned", "--like", checkpoint, "--path", tmp_path / "back.pt"]
    assert command("import_checkpoint", *back) == 0
    assert not capsys.readouterr().err
    old, new = weights(checkpoint), weights(tmp_path / "back.pt")
    checkpoint_utils.load_model_ensemble([str(tmp_path / "back.pt")], {"data": str(data)})
    assert sum(not torch.equal(old[name], new[name]) for name in old) == 1
    assert command("import_checkpoint", *back) == 1
    if model.get_output_embeddings() is None:
        return
    model.resize_token_embeddings(model.config.vocab_size + 8)
    model.save_pretrained(str(tmp_path / "larger"))
    capsys.readouterr()
    assert command("import_checkpoint", tmp_path / "larger", *back[1:4], tmp_path / "other.pt") == 1
    assert re.search(rf"expected .* shape {model.config.vocab_size - 8}\b", capsys.readouterr().err)


def test_import_of_a_separate_source_embedding_from_several_files(tmp_path, monkeypatch):
    monkeypatch.setitem(VARIANTS["translation"], "tied output", {"share_decoder_input_output_embed": True})
    checkpoint, _, back = exported("translation", "tied output", tmp_path)
    (whole,) = (tmp_path / "hf").glob("*.safetensors")
    tensors = load_file(str(whole))
    whole.unlink()
    for name, value in tensors.items():  # the source's comes first
        number = 0 if name.startswith("luna.encoder.embed") else 1
        folder = tmp_path / "hf" / f"model-{number}.safetensors"
        kept = load_file(str(folder)) if folder.exists() else {}
        save_file({**kept, name: value}, str(folder))
    assert command("import_checkpoint", *back, tmp_path / "b.pt") == 0
    old, new = weights(checkpoint), weights(tmp_path / "b.pt")
    assert all(torch.equal(old[name], new[name]) for name in old)


def test_a_checkpoint_of_another_direction_is_refused(tmp_path, capsys):
    checkpoint, _, back = exported("translation", "tied", tmp_path)
    state = torch.load(str(checkpoint), weights_only=False)
    state["cfg"]["task"].update(source_lang="b", target_lang="a")
    torch.save(state, str(checkpoint))
    assert command("import_checkpoint", *back, tmp_path / "back.pt") == 1
    assert "--like" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tokenizer.json", "target_tokenizer.json"])
def test_another_vocabulary_of_the_same_size_is_refused(name, tmp_path, capsys, caplog):
    _, _, back = exported("translation", "tied", tmp_path)
    path = tmp_path / "hf" / name
    text = path.read_text(encoding="utf-8")
    content = json.loads(text)
    vocabulary = content["model"]["vocab"]
    vocabulary.update(w3=vocabulary["w4"], w4=vocabulary["w3"])
    capsys.readouterr()
    for number, damaged in enumerate((json.dumps(content), text[:-20])):
        path.write_text(damaged, encoding="utf-8")
        assert command("import_checkpoint", *back, tmp_path / f"{number}.pt") == 1
    path.unlink()
    assert command("import_checkpoint", *back, tmp_path / "unknown.pt") == 0
    said = [*capsys.readouterr().err.splitlines(), *filter(re.compile(name).search, caplog.messages)]
    parts = (f"{name} has another vocabulary", f"{name} is not a tokenizer", f"{name} does not exist")
    assert len(said) == 3 and all(part in line for part, line in zip(parts, said)), said


def test_the_model_card_shows_the_training_and_its_score(tmp_path, capsys):
    scores = tmp_path / "results" / "scores.json"
    scores.parent.mkdir()
    checkpoint, export, _ = exported("translation", "tied", tmp_path)
    translation = tmp_path / "generate-test.txt"
    translation.touch()
    score = {"name": "BLEU", "value": 27.304, "signature": "nrefs:1|tok:13a"}
    origin = {**describe_checkpoint(checkpoint), "settings": {"beam": 5, "lenpen": 0.6}}
    write_scores(scores, [score], translation, origin)
    assert command("export", tmp_path / "hf1", *export) == 0
    card = (tmp_path / "hf1" / "README.md").read_text(encoding="utf-8")
    assert "| updates | 12 |" in card and "| epochs | 40 |" in card
    assert "| BLEU | 27.30 (`nrefs:1\\|tok:13a`; beam 5, lenpen 0.6) |" in card

    # The scores of other weights are not shown, and are refused if the user names them.
    for other in ({**origin, "checkpoint_sha256": "0"}, {**origin, "ema": True}, {}):
        write_scores(scores, [score], translation, other)
        assert find_scores(checkpoint, ema=False) == {}
        if other:
            with pytest.raises(InputError, match="--scores"):
                find_scores(checkpoint, False, scores)
    assert find_scores(checkpoint, False, scores) == {"BLEU": "27.30 (`nrefs:1|tok:13a`)"}
    scores.write_text("{}", encoding="utf-8")
    assert command("export", tmp_path / "hf2", *export, "--scores", scores.with_name("none.json")) == 1
    scores.write_text("[1]", encoding="utf-8")
    assert command("export", tmp_path / "hf2", *export) == 1
    missing, damaged = capsys.readouterr().err.splitlines()
    assert f"--scores {scores.with_name('none.json')}" in missing and str(scores) in damaged


def change_checkpoint(path, change):
    """Load a checkpoint, call ``change`` with its contents, and save it."""
    state = torch.load(str(path), weights_only=False)
    change(state)
    torch.save(state, str(path))


def test_the_model_card_names_the_metric_that_was_validated(tmp_path):
    checkpoint, export, _ = exported("translation", "tied", tmp_path)

    def validate_bleu(state):
        state["extra_state"]["val_loss"] = 31.5
        state["cfg"]["checkpoint"]["best_checkpoint_metric"] = "bleu"

    change_checkpoint(checkpoint, validate_bleu)
    assert command("export", tmp_path / "hf1", *export) == 0
    card = (tmp_path / "hf1" / "README.md").read_text(encoding="utf-8")
    assert "| validation bleu | 31.5 |" in card and "validation loss" not in card
    back = tmp_path / "back.pt"
    assert command("import_checkpoint", tmp_path / "hf1", "--like", checkpoint, "--path", back) == 0
    assert "val_loss" not in torch.load(str(back), weights_only=False)["extra_state"]


HEAD = "sentence_classification_head"


@pytest.mark.parametrize("labels", [("contradiction", "neutral", "entailment"), ()])
def test_an_exported_classifier_knows_its_labels(labels, tmp_path):
    """Labels have the names in the data, and a regression predicts the number of its logit."""
    checkpoint, data, _ = save("masked LM", "tied", tmp_path)

    def fine_tune(state):
        options = {"classification_head_name": HEAD, "regression_target": not labels}
        state["cfg"]["criterion"] = {"_name": "sentence_prediction", **options}
        state["cfg"]["task"] = {"_name": "sentence_prediction", "data": str(data), "max_positions": 40}
        state["cfg"]["task"].update(options, num_classes=len(labels) or 1)
        for name in [name for name in state["model"] if name.startswith("classification_heads.")]:
            if HEAD not in name:
                del state["model"][name]
            elif ".out_proj." in name:
                state["model"][name] = state["model"][name][: len(labels) or 1]

    change_checkpoint(checkpoint, fine_tune)
    for folder, words in (("input0", (data / "dict.txt").read_text()), ("label", " 1\n".join((*labels, "")))):
        (data / folder).mkdir()
        (data / folder / "dict.txt").write_text(words, encoding="utf-8")
    folder = tmp_path / "hf"
    assert command("export", folder, "--path", checkpoint, "--data", data) == 0
    classify = transformers.pipeline("text-classification", str(folder), **TRUSTED)
    logits = classify.model(**classify.tokenizer("w3 w5", return_tensors="pt")).logits[0].tolist()
    (found,) = classify("w3 w5")
    if labels:
        assert found["label"] == labels[logits.index(max(logits))]
        assert classify.model.config.label2id == {name: number for number, name in enumerate(labels)}
    else:
        assert found["score"] == pytest.approx(logits[0], abs=1e-5) and logits[0] != 0


def test_the_file_of_pretrained_vectors_is_not_needed(tmp_path):
    checkpoint, data, _ = save("translation", "tied", tmp_path)
    lost = {f"{side}_embed_path": str(tmp_path / "lost.txt") for side in ("encoder", "decoder")}
    change_checkpoint(checkpoint, lambda state: state["cfg"]["model"].update(lost))
    assert command("export", tmp_path / "hf", "--path", checkpoint, "--data", data) == 0
    LunaModel.from_pretrained(str(tmp_path), "model.pt", str(data))


def test_a_language_model_begins_with_bos_after_training_with_it(tmp_path):
    checkpoint, data, _ = save("causal LM", "tied", tmp_path)
    change_checkpoint(checkpoint, lambda state: state["cfg"]["task"].update(add_bos_token=True))
    folder = tmp_path / "hf"
    assert command("export", folder, "--path", checkpoint, "--data", data) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **TRUSTED)
    model = transformers.AutoModelForCausalLM.from_pretrained(str(folder), **TRUSTED)
    assert tokenizer("w1 w2").input_ids == [0, 5, 6]
    assert model.config.bos_token_id == model.generation_config.bos_token_id == tokenizer.bos_token_id == 0


def test_an_image_classifier_has_no_tokenizer(tmp_path, monkeypatch):
    checkpoint, data, _ = save("translation", "tied", tmp_path)
    task = Namespace(cfg=Namespace(), source_dictionary=None, target_dictionary=None)
    state = {"cfg": {"task": {"_name": "lra-image"}}}
    loaded = checkpoint_module.Checkpoint(classifier(torch.float32, pixels=True), task, state)
    monkeypatch.setattr(checkpoint_module, "load", lambda *_: loaded)
    folder = tmp_path / "hf"
    assert command("export", folder, "--path", checkpoint, "--data", data) == 0
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "import AutoModelForSequenceClassification\n" in card and "okenizer" not in card
    assert json.loads((folder / "config.json").read_text(encoding="utf-8")).get("tokenizer_class") is None


SOFTMAX = {"attention": "softmax", "encoder_attention_heads": 2}
TAGS = {"_name": "translation_multi_simple_epoch"}
REFUSED = {
    "peer": (
        lambda: build_perturbed(PeerTransformer, {**OPTIONS, **SOFTMAX}, Task()),
        "PeerTransformer",
    ),
    "RNN": (lambda: RnnAttentionModel.build_model(Namespace(), Task()), "RnnAttentionModel"),
    "twin": (
        lambda: classifier(layer_type="transformer"),
        "--layer-type transformer",
    ),
    "softmax": (lambda: language_model(adaptive_softmax_cutoff="5,9"), "adaptive softmax"),
    "input": (lambda: language_model(**LM_VARIANTS["adaptive input"]), "adaptive input"),
    "output": (
        lambda: build_perturbed(LunaLanguageModel, LM_OPTIONS, Task(23, 15)),
        "--output-dictionary-size 15 .* transformers needs a logit for every token",
    ),
    "spectral": (
        lambda: tiny_masked_lm.tiny_model(
            torch.float32, tiny_masked_lm.HEADS[:1], spectral_norm_classification_head=True
        ),
        f"head {tiny_masked_lm.HEADS[0]} has --spectral-norm-classification-head .* --head none",
    ),
    "tags": (lambda: build_perturbed(LunaModel, OPTIONS, Task()), f"--task {TAGS['_name']}"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("exporter", ["export", "export_onnx"])
def test_other_models_are_refused_in_one_line(exporter, name, tmp_path, capsys, monkeypatch):
    if exporter == "export_onnx":
        pytest.importorskip("onnxscript"), pytest.importorskip("onnxruntime")
    build, reason = REFUSED[name]
    checkpoint, data, _ = save("translation", "tied", tmp_path)
    loaded = checkpoint_module.Checkpoint(build(), None, {"cfg": {"task": TAGS}})
    monkeypatch.setattr(checkpoint_module, "load", lambda *_: loaded)
    words = ["--path", checkpoint, "--data", data]
    assert command(exporter, tmp_path / "out", *words) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and re.search(reason, lines[0])
    assert not (tmp_path / "out").exists()
