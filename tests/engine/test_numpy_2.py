"""fairseq's sentence blocks and checkpoints work with the installed numpy."""

import types

import numpy
import torch

import luna_fairseq  # noqa: F401  changes fairseq
from fairseq.data import TokenBlockDataset
from luna_fairseq.engine.checkpoints import _allow_checkpoint_classes


def test_blocks_of_one_sentence():
    sentences = [torch.tensor([5, 6, 2]), torch.tensor([7, 2])]
    blocks = TokenBlockDataset(sentences, [3, 2], block_size=None, pad=1, eos=2, break_mode="eos")
    assert [blocks[i].tolist() for i in range(len(blocks))] == [[5, 6, 2], [7, 2]]
    assert int(numpy.__version__.split(".")[0]) < 2 or not hasattr(numpy, "compat")


def test_classes_are_allowed_if_numpy_has_an_empty_core_module(monkeypatch):
    """numpy 1.26 has such a module after torch has looked for ``numpy._core``."""
    allowed = []
    monkeypatch.setattr(torch.serialization, "add_safe_globals", allowed.extend, raising=False)
    monkeypatch.setattr(numpy, "_core", types.ModuleType("numpy._core"), raising=False)
    _allow_checkpoint_classes()
    names = {entry[1] for entry in allowed if isinstance(entry, tuple)}
    modules = ("numpy.core.multiarray", "numpy._core.multiarray")
    assert names == {f"{module}.{name}" for module in modules for name in ("_reconstruct", "scalar")}
