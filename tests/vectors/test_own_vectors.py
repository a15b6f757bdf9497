"""The numbers of the attentions and of two tiny models, pinned in a file of this repository."""

import pytest
import torch
from old_torch import WEIGHTS_ONLY
from vectors import PATH, build_model, causal_attention, load_flat, run_model, softmax_attention

from luna_fairseq.ops.attention import luna_attention
from luna_fairseq.ops.causal_luna import chunk_causal_luna

VECTORS = torch.load(PATH, weights_only=WEIGHTS_ONLY)
precisions = pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 2e-5)])


def cast(tensors, dtype):
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}


def assert_outputs(actual, expected, tolerance):
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        assert value.shape == expected[name].shape, name
        error = ((value.double() - expected[name]).abs() / expected[name].abs().clamp(min=1)).max().item()
        assert error <= tolerance, f"{name}: relative error {error:.2e}"


@precisions
@pytest.mark.parametrize("case", list(VECTORS["softmax"]))
def test_softmax_attention(case, dtype, tolerance):
    vectors = VECTORS["softmax"][case]
    inputs = cast(vectors["inputs"], dtype)
    assert_outputs(softmax_attention(inputs), vectors["outputs"], tolerance)
    output = {"output": luna_attention(**inputs)}
    assert_outputs(output, {"output": vectors["outputs"]["output"]}, tolerance)


@precisions
@pytest.mark.parametrize("case", list(VECTORS["causal"]))
def test_causal_attention(case, dtype, tolerance):
    vectors = VECTORS["causal"][case]
    inputs = cast(vectors["inputs"], dtype)
    outputs = causal_attention(inputs, vectors["activation"])
    assert_outputs(outputs, vectors["outputs"], tolerance)
    rest = {name: x for name, x in inputs.items() if not name.startswith("pack_")}
    output = {"output": chunk_causal_luna(pack_weights=outputs["pack_weights"], **rest)}
    assert_outputs(output, {"output": vectors["outputs"]["output"]}, tolerance)


@precisions
@pytest.mark.parametrize("case", list(VECTORS["model"]))
@pytest.mark.parametrize("backend", ["naive", "chunk"])
def test_model(case, backend, dtype, tolerance):
    vectors = VECTORS["model"][case]
    model = build_model({**vectors["options"], "luna_backend": backend}, dtype)
    load_flat(model, vectors["weights"], vectors["shapes"])
    assert_outputs(run_model(model, vectors["inputs"]), vectors["outputs"], tolerance)
