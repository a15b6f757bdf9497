"""Luna's encoder and decoder are no TorchScript and no graph of torch.export, and say so."""

from torch import nn

from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import in_a_graph

REASON = (
    "Luna cannot be traced or scripted by torch.jit, or go through torch.export: its steps depend on the "
    "lengths of a batch, and a graph would keep those of its example (luna-export-onnx writes one for every "
    "length)"
)


def refuse_graphs() -> None:
    """Raise InputError in torch.jit.trace and torch.export."""
    if in_a_graph("is_exporting"):
        raise InputError(REASON)


class NoTorchScript(nn.Module):
    """A module that torch.jit.script refuses in one line, alone or as a part of another."""

    def __prepare_scriptable__(self) -> nn.Module:
        """torch.jit.script asks every module for a form of it that can be scripted.

        Raises:
            InputError: always
        """
        raise InputError(REASON)
