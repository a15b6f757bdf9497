"""What every test needs: one thread per process, no GPU tests where there is no GPU, no fp16 where torch has
none."""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; tests run side by side

from subprocess import PIPE, STDOUT  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from forked import Popen  # noqa: E402
from old_torch import lacks_fp16_kernel  # noqa: E402

import luna_fairseq.models  # noqa: E402, F401  registers everything with fairseq, as commands do
from luna_fairseq.anchored import segments  # noqa: E402
from luna_fairseq.commands import logged  # noqa: E402


@pytest.fixture(autouse=True)
def look_ups_in_segments(request, monkeypatch):
    """Contexts of tests are short, and a look-up reads them whole; so marked, it reads three tokens whole."""
    if request.node.get_closest_marker("in_segments"):
        monkeypatch.setattr(segments, "DENSE_LENGTH", 3)
        monkeypatch.setattr(segments, "MASKED_DENSE_LENGTH", 3)


@pytest.fixture(scope="module")
def forked_commands():
    """What our commands start of fairseq's is forked from a process that has imported it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logged, "subprocess", SimpleNamespace(Popen=Popen, PIPE=PIPE, STDOUT=STDOUT))
        yield


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish():
    """What is there by now stays to the end: garbage collection need not look through it every time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call():
    try:
        return (yield)
    except Exception as error:
        if lacks_fp16_kernel(error):
            pytest.skip(f"torch {torch.__version__} has no fp16 on a CPU")
        raise
