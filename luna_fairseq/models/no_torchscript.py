"""Error messages for torch.jit and torch.export, which Luna's encoder and decoder do not support."""

from torch import nn

from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import in_a_graph

REASON = (
    "Luna cannot be traced or scripted by torch.jit, or exported by torch.export: the graph would be "
    "correct only for the lengths of its example batch. Use luna-export-onnx, which writes a graph for "
    "every length"
)


def refuse_graphs() -> None:
    """Raise InputError inside of torch.jit.trace and torch.export."""
    if in_a_graph("is_exporting"):
        raise InputError(REASON)


class NoTorchScript(nn.Module):
    """Base class of modules that raise InputError in torch.jit.script, even inside another module."""

    def __prepare_scriptable__(self) -> nn.Module:
        """Refuse torch.jit.script, which calls this method of every module.

        Raises:
            InputError: always.
        """
        raise InputError(REASON)
