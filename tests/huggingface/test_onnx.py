"""luna-export-onnx on a checkpoint of every kind, and its graphs in onnxruntime.

The export itself compares the numbers for other batch sizes and lengths.
"""

import json

import numpy as np
import pytest
import torch
from every_kind import ONE_LAYER, VARIANTS, small_model
from tiny_checkpoints import command, save
from tiny_luna import EOS, PAD, batch, sentences
from tiny_models import beam_search

from luna_fairseq.anchored import geometry, segments
from luna_fairseq.errors import InputError

for module in ("transformers", "onnxscript", "onnxruntime"):
    pytest.importorskip(module)

from luna_fairseq.huggingface import export_onnx  # noqa: E402
from luna_fairseq.huggingface.conversion import convert, find_kind  # noqa: E402
from luna_fairseq.huggingface.onnx_parts import WholeModel  # noqa: E402
from luna_fairseq.huggingface.onnx_runs import (  # noqa: E402
    Graph,
    compute_graph_logits,
    decode_step_by_step,
    target_tokens,
)


def exported(kind, variant, folder):
    """Return the fairseq model and the folder that the command writes."""
    checkpoint, data, model = save(kind, variant, folder)
    words = ["--path", checkpoint, "--data", data, "--head", "none"]
    assert command("export_onnx", folder / "onnx", *words) == 0
    return model, folder / "onnx"


def greedy(step, memory, rows, length, search=False):
    """Generate tokens [B, length] with the graph of a decoder.

    Args:
        search: exclude padding, and EOS as the first token, as the search of fairseq does
    """
    token, found, state = np.full((rows, 1), EOS), [], step.first_state(rows)
    for place in range(length):
        after = step({"token": token, **memory, **state})
        logits = after.pop("logits")
        if search:
            logits[:, [PAD, EOS] if place == 0 else PAD] = -np.inf
        token = logits.argmax(axis=1)[:, None]
        state = {name[len("next_") :]: value for name, value in after.items()}
        found.append(token)
    return np.concatenate(found, axis=1).tolist()


def test_a_model_without_a_decoder(tmp_path):
    model, folder = exported("masked LM", "local", tmp_path)
    tokens = batch(sentences((7, 4), 20))
    with torch.no_grad():
        expected = model(tokens)[0]
    found = torch.from_numpy(Graph(folder / "model.onnx")({"input_ids": tokens.numpy()})["logits"])
    there = tokens.ne(1)
    torch.testing.assert_close(found[there], expected[there], rtol=0, atol=1e-4)
    other = convert(model, find_kind(model), small_model("masked LM", "local")[1])
    with torch.no_grad():
        other.luna.layers[0].fc1.bias.add_(1)
    with pytest.raises(InputError, match="model.onnx differs from the model in logits"):
        export_onnx._compare_graph(WholeModel(other), folder / "model.onnx", [(tokens,)])
    with pytest.raises(InputError, match=r"model.onnx .* input_ids \[7\]"):
        Graph(folder / "model.onnx")({"input_ids": tokens.numpy()[0]})


def test_the_names_of_the_classes_are_exported(tmp_path, monkeypatch):
    monkeypatch.setattr(export_onnx, "write_onnx", lambda model, folder: None)
    model, folder = exported("classifier", "mean", tmp_path)
    with torch.no_grad():
        classes = model(batch(sentences((7, 4), 20))).size(1)
    assert json.loads((folder / "labels.json").read_text()) == [f"w{number}" for number in range(classes)]


def test_a_causal_language_model(tmp_path):
    model, folder = exported("causal LM", "one layer", tmp_path)
    assert {path.name for path in folder.glob("*.onnx")} == {"decoder.onnx"}
    expected = [[EOS], [EOS]]
    step = Graph(folder / "decoder.onnx")
    found = greedy(step, {}, 2, 6)
    with torch.no_grad():
        for _ in range(6):
            last = model(torch.tensor(expected))[0][:, -1].argmax(dim=1).tolist()
            expected = [[*row, token] for row, token in zip(expected, last)]
    assert found == [row[1:] for row in expected]
    prompts, rows = batch([[EOS, 5, 6, 7], [EOS, 8]], left=True), []
    for ids in (prompts, torch.tensor([[EOS, 8]])):
        rows.append(decode_step_by_step(step, {}, ids)[-1, -1])
    np.testing.assert_allclose(*rows, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "variant",
    ["one layer", pytest.param("anchored softmax cross diagonal", marks=pytest.mark.slow)],
)
def test_a_translation_model(variant, tmp_path):
    model, folder = exported("translation", variant, tmp_path)
    tokens = batch(sentences((9, 4, 6), 23), left=True)
    memory = Graph(folder / "encoder.onnx")({"input_ids": tokens.numpy()})
    found = greedy(Graph(folder / "decoder.onnx"), memory, 3, 8, search=True)
    for row, best in zip(found, beam_search(model, tokens, 1, max_len_b=60)):
        words = best[0]["tokens"].tolist()[:8]
        assert row[: len(words)] == words


@pytest.mark.slow
def test_a_branch_on_the_length_is_part_of_the_graph(tmp_path, monkeypatch):
    """Look-ups read short sources densely, and longer ones in segments.

    A graph must contain both branches.
    """
    variant, more = "look-up diagonal", {**ONE_LAYER, "max_source_positions": 300}
    monkeypatch.setitem(VARIANTS["translation"], variant, {**VARIANTS["translation"][variant], **more})
    model, folder = exported("translation", variant, tmp_path)
    other = convert(model, find_kind(model), small_model("translation", variant)[1])
    for lengths in ((1, 64, 63), (65,), (200, 65, 3)):
        tokens = batch(sentences(lengths, 23))
        with torch.no_grad():
            expected = model(tokens, None, target_tokens(other.config, tokens))[0]
        found = compute_graph_logits(other.config, folder, tokens)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    find = geometry.find_layout
    monkeypatch.setattr(geometry, "find_layout", lambda *given: find(*given[:3]))
    monkeypatch.setattr(segments, "is_recording_graph", lambda *_: False)
    with pytest.raises(InputError, match="differs from the model in|ONNX cannot express"):
        export_onnx.write_onnx(other, tmp_path / "other")


@pytest.mark.parametrize(
    "kind, variant, message",
    [
        ("classifier", "pixels", "Classifiers of images and of pairs cannot"),
        (
            "translation",
            "look-up sentence diagonal",
            "A model with --sentence-diagonal cannot be exported to ONNX",
        ),
    ],
)
def test_other_models_are_refused(kind, variant, message, tmp_path):
    model, dictionary = small_model(kind, variant)
    with pytest.raises(InputError, match=message):
        export_onnx.write_onnx(convert(model, find_kind(model), dictionary), tmp_path)
