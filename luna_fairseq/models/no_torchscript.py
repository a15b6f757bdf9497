"""Raise clear errors in torch.jit and torch.export, which Luna models do not support."""

from torch import nn

from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import is_recording_graph

REASON = (
    "Luna cannot be traced or scripted by torch.jit, or exported by torch.export: the graph would be "
    "correct only for the lengths of its example batch. Use luna-export-onnx, which writes a graph for "
    "every length"
)


def refuse_tracing() -> None:
    """Raise InputError if called while torch.jit.trace or torch.export records a model."""
    if is_recording_graph("is_exporting"):
        raise InputError(REASON)


class NoTorchScript(nn.Module):
    """Base class of modules that raise InputError when they are compiled with torch.jit.script."""

    def __prepare_scriptable__(self) -> nn.Module:
        """Raise InputError. torch.jit.script calls this on every module."""
        raise InputError(REASON)
