"""The outputs of two tiny models equal the values stored in this repository."""

import pytest
import torch
from old_torch import WEIGHTS_ONLY
from vectors import PATH, build_model, run_model

VECTORS = torch.load(PATH, weights_only=WEIGHTS_ONLY)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 2e-5)])
@pytest.mark.parametrize("case", list(VECTORS))
@pytest.mark.parametrize("backend", ["naive", "chunk"])
def test_model(case, backend, dtype, tolerance):
    vectors = VECTORS[case]
    model = build_model({**vectors["options"], "luna_backend": backend}, dtype)
    assert dict(model.named_parameters()).keys() == vectors["weights"].keys()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(vectors["weights"][name])
    for name, value in run_model(model, vectors["inputs"]).items():
        expected = vectors["outputs"][name]
        error = ((value.double() - expected).abs() / expected.abs().clamp(min=1)).max().item()
        assert value.shape == expected.shape and error <= tolerance, f"{name}: relative error {error:.2e}"
