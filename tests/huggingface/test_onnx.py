"""Exported graphs against the model, for batches and lengths that were not seen at export."""

import pytest
from every_kind import small_model

from luna_fairseq.errors import InputError

for module in ("transformers", "onnxscript", "onnxruntime"):
    pytest.importorskip(module)

from luna_fairseq.huggingface.conversion import convert, kind_of  # noqa: E402
from luna_fairseq.huggingface.export_onnx import write_onnx  # noqa: E402

slow = pytest.mark.slow
CASES = [
    ("masked LM", "tied", {"model.onnx"}),
    pytest.param("classifier", "mean", {"model.onnx"}, marks=slow),
    pytest.param("causal LM", "untied", {"decoder.onnx", "start.npz"}, marks=slow),
    pytest.param("translation", "tied", {"encoder.onnx", "decoder.onnx"}, marks=slow),
]


def exported(kind, variant):
    model, dictionary = small_model(kind, variant)
    return convert(model, kind_of(model), dictionary)


@pytest.mark.parametrize(("kind", "variant", "names"), CASES)
def test_the_same_numbers(kind, variant, names, tmp_path):
    """The export itself compares."""
    write_onnx(exported(kind, variant), tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".data"} == names


def test_another_model_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("luna_fairseq.huggingface.export_onnx.LARGEST_DIFFERENCE", -1.0)
    with pytest.raises(InputError, match="model.onnx gives another logits than the model"):
        write_onnx(exported("masked LM", "tied"), tmp_path)


def test_what_cannot_be_exported(tmp_path):
    with pytest.raises(InputError, match="classifiers of pixels and of pairs cannot"):
        write_onnx(exported("classifier", "pixels"), tmp_path)
