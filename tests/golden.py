"""The numeric vectors beside the repository, for tests; nothing of them is part of the project."""

from pathlib import Path

import pytest
import torch
from old_torch import WEIGHTS_ONLY

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "golden"
DTYPES = {"f32": torch.float32, "f64": torch.float64}
TOLERANCES = {"f32": 1e-5, "f64": 1e-9}


def load(name):
    """The vectors of file ``name``, or a skipped test."""
    path = FOLDER / f"{name}.pt"
    if not path.exists():
        pytest.skip(f"no golden vectors: {path.name} is not beside this checkout")
    return torch.load(path, weights_only=WEIGHTS_ONLY)


def cast(tensors, dtype):
    """A dict of tensors with its floating ones in ``dtype``."""
    return {k: v.to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v for k, v in tensors.items()}


def assert_close(actual, expected, precision, what=""):
    """|actual - expected| <= tolerance * max(1, |expected|), everywhere."""
    assert actual.shape == expected.shape, f"{what}: {tuple(actual.shape)} != {tuple(expected.shape)}"
    error = ((actual - expected).abs() / expected.abs().clamp(min=1)).max().item()
    assert error <= TOLERANCES[precision], f"{what}: relative error {error:.2e}"
