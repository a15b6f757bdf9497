"""Numeric vectors of the authors' implementation (``tests/vectors/authors/README.md``): those that are
shipped, and where a checkout has them beside it, all."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from old_torch import WEIGHTS_ONLY

SHIPPED = Path(__file__).parent / "vectors" / "authors"
ALL = Path(__file__).resolve().parents[2] / "shared" / "golden"
DTYPES = {"f32": torch.float32, "f64": torch.float64}
TOLERANCES = {"f32": 1e-5, "f64": 1e-9}


class Vectors(dict):
    """A branch of a file. What is not shipped skips the test that asks for it; float32's expectations are
    float64's, rounded."""

    def __missing__(self, name):
        if name == "f32" and "f64" in self:
            return rounded(self["f64"])
        pytest.skip(f"{name} is not among the vectors of the authors' code that are shipped")


def load(name):
    """The vectors of file ``name``, as nested dicts and lists, or a skipped test."""
    if (ALL / f"{name}.pt").exists():
        return torch.load(ALL / f"{name}.pt", weights_only=WEIGHTS_ONLY)
    return load_shipped(name)


def load_shipped(name):
    """The part of file ``name`` that is shipped."""
    path = SHIPPED / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{name} is not among the vectors of the authors' code that are shipped")
    with np.load(path) as arrays:  # without pickles

        def filled(branch):
            if isinstance(branch, list):
                return [filled(one) for one in branch]
            if not isinstance(branch, dict):
                return branch
            if set(branch) == {"array"}:
                return torch.from_numpy(arrays[branch["array"]])
            return Vectors({name: filled(one) for name, one in branch.items()})

        return filled(json.loads(str(arrays["tree"])))


def rounded(branch):
    """``branch`` with float32 in the place of float64."""
    if isinstance(branch, dict):
        return Vectors({name: rounded(value) for name, value in branch.items()})
    if isinstance(branch, list):
        return [rounded(value) for value in branch]
    return branch.float() if torch.is_tensor(branch) and branch.dtype == torch.float64 else branch


def cast(tensors, dtype):
    """A dict of tensors with its floating ones in ``dtype``."""
    return {k: v.to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v for k, v in tensors.items()}


def assert_close(actual, expected, precision, what=""):
    """|actual - expected| <= tolerance * max(1, |expected|), everywhere."""
    assert actual.shape == expected.shape, f"{what}: {tuple(actual.shape)} != {tuple(expected.shape)}"
    error = ((actual - expected).abs() / expected.abs().clamp(min=1)).max().item()
    assert error <= TOLERANCES[precision], f"{what}: relative error {error:.2e}"
