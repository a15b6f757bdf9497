"""Setup of all tests: one thread per process, and skips of tests that the machine cannot run.

Without a GPU, tests that are marked ``gpu`` are skipped. If torch has no fp16 on a CPU, tests that use it are
skipped.
"""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, because tests run in parallel

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
    """Make the look-up of anchored models read segments of three tokens in tests marked ``in_segments``.

    Without the mark, the contexts of tests are so short that a look-up reads them whole.
    """
    if request.node.get_closest_marker("in_segments"):
        monkeypatch.setattr(segments, "DENSE_LENGTH", 3)
        monkeypatch.setattr(segments, "MASKED_DENSE_LENGTH", 3)


@pytest.fixture(scope="module")
def forked_commands():
    """Fork the fairseq commands that our commands start from a process that has already imported fairseq."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logged, "subprocess", SimpleNamespace(Popen=Popen, PIPE=PIPE, STDOUT=STDOUT))
        yield


def pytest_collection_modifyitems(items):
    # The longest file comes first, so that no worker is left alone with it at the end.
    items.sort(key=lambda item: not item.nodeid.startswith("tests/ways_out/"))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish():
    """Exclude all objects that exist by now from garbage collection, which makes the tests faster."""
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
