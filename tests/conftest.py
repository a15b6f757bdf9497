"""What every test needs: one thread per process, and no GPU tests where there is no GPU."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; tests run side by side

import pytest  # noqa: E402
import torch  # noqa: E402


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
