"""The Triton form's tests in Triton's interpreter: in a process of their own, for the setting is read on
import."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forked import TORCH, run_code

from luna_fairseq.ops.causal_luna import triton as form

HERE = Path(__file__).resolve().parent
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1",
    reason="triton is not installed, or already interprets",
)


@needs_triton
@pytest.mark.parametrize("marks", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", ["test_causal_luna_triton.py", "test_causal_luna_triton_dropout.py", "test_causal_luna_choice.py"]
)
def test_in_the_interpreter(name, marks):
    # One thread: the interpreter's products are small, and a pool of threads per product is what would take
    # the time.
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, str(HERE / name)]
    result = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True)
    if marks == "slow" and result.returncode == 5:  # none was selected
        pytest.skip(f"{name} has no slow tests")
    assert result.returncode == 0 and " passed" in result.stdout, (
        result.stdout[-5000:] + result.stderr[-2000:]
    )


def test_the_package_imports_without_triton():
    code = "import sys; sys.modules['triton'] = None; import luna_fairseq.ops.causal_luna.triton"
    run_code(code, imported=TORCH)


def test_the_reason_without_a_gpu(monkeypatch):
    q, weights = torch.zeros(1, 1, 3, 8), torch.zeros(1, 1, 3, 5)
    heads = q.device, q.dtype, 8, 5
    form.why_not_triton_here.cache_clear()
    if importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") != "1":
        assert "NVIDIA GPU, not device cpu" in form.why_not_triton(*heads)
    form.why_not_triton_here.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert form.why_not_triton(*heads) == "the package triton is not installed"
    with pytest.raises(ValueError, match="triton is not installed; choose the backend chunk"):
        form.triton_causal_luna(q, q, q, weights)
    form.why_not_triton_here.cache_clear()
