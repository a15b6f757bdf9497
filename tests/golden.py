"""Numeric vectors of the authors' implementation, described in ``tests/vectors/authors/README.md``.

Some of the vectors are shipped. A checkout may have all of them in a folder beside it.
"""

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
    """Branch of a file of vectors. Access to a vector that is not shipped skips the test.

    Expected values in float32 are the rounded float64 values.
    """

    def __missing__(self, name):
        if name == "f32" and "f64" in self:
            return rounded(self["f64"])
        pytest.skip(f"{name} is not among the vectors of the authors' code that are shipped")


def load(name):
    """Return the vectors of file ``name`` as nested dicts and lists, or skip the test if they are missing."""
    if (ALL / f"{name}.pt").exists():
        return torch.load(ALL / f"{name}.pt", weights_only=WEIGHTS_ONLY)
    return load_shipped(name)


def load_shipped(name):
    """Return the shipped vectors of file ``name``, or skip the test if there are none."""
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
    """Return a copy of ``branch`` in which float64 tensors are rounded to float32."""
    if isinstance(branch, dict):
        return Vectors({name: rounded(value) for name, value in branch.items()})
    if isinstance(branch, list):
        return [rounded(value) for value in branch]
    return branch.float() if torch.is_tensor(branch) and branch.dtype == torch.float64 else branch


def cast(tensors, dtype):
    """Return a copy of a dict of tensors with the floating-point tensors in ``dtype``."""
    return {k: v.to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v for k, v in tensors.items()}


def assert_close(actual, expected, precision, what=""):
    """Assert that |actual - expected| <= tolerance * max(1, |expected|) for every element."""
    assert actual.shape == expected.shape, f"{what}: {tuple(actual.shape)} != {tuple(expected.shape)}"
    error = ((actual - expected).abs() / expected.abs().clamp(min=1)).max().item()
    assert error <= TOLERANCES[precision], f"{what}: relative error {error:.2e}"
