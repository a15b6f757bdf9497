"""Clear errors for torch.jit and torch.export, which Luna models do not support."""

from torch import nn

from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import is_recording_graph

REASON = (
    "Luna cannot be traced or scripted by torch.jit, or exported by torch.export: the graph would be "
    "correct only for the lengths of its example batch. Use luna-export-onnx, which writes a graph for "
    "every length"
)


def refuse_tracing() -> None:
    """Raise an error if called inside torch.jit.trace or torch.export.

    Raises:
        InputError: The current call is being traced or exported.
    """
    if is_recording_graph("is_exporting"):
        raise InputError(REASON)


class NoTorchScript(nn.Module):
    """Base class of modules that raise InputError when torch.jit.script compiles them.

    This also applies if the module is a submodule of another module.
    """

    def __prepare_scriptable__(self) -> nn.Module:
        """Raise an error, because TorchScript is not supported.

        torch.jit.script calls this on every module before scripting.

        Raises:
            InputError: Always.
        """
        raise InputError(REASON)
