"""Run the tests of the Triton kernels in Triton's interpreter.

They run in a process of their own, because Triton reads the setting when it is imported. The process has one
thread, because the products of the interpreter are small.
"""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
from forked import TORCH, run_code, run_python

from luna_fairseq.ops.causal_luna import triton as form

HERE = Path(__file__).resolve().parent
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1",
    reason="triton is not installed, or already interprets",
)


@needs_triton
@pytest.mark.parametrize("marks", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_in_the_interpreter(marks):
    names = ("test_causal_luna_triton.py", "test_causal_luna_triton_dropout.py", "test_causal_luna_choice.py")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", marks]
    paths = [str(HERE / name) for name in names]
    result = run_python("-m", "pytest", *options, *paths, imported=TORCH, TRITON_INTERPRET="1")
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
    with pytest.raises(ValueError, match="triton is not installed. Use the backend chunk"):
        form.triton_causal_luna(q, q, q, weights)
    form.why_not_triton_here.cache_clear()
