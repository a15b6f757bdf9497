"""Luna's encoder and decoder are no TorchScript and no graph of torch.export, and say so."""

import torch
from torch import nn

from luna_fairseq.errors import InputError

REASON = (
    "Luna cannot be traced or scripted by torch.jit, or go through torch.export: its steps depend on the "
    "lengths of a batch, and a graph would keep those of its example (luna-export-onnx writes one for every "
    "length)"
)


def refuse_graphs() -> None:
    """Raise InputError where torch.jit.trace or torch.export (torch 2.7) looks into what runs."""
    is_exporting = getattr(getattr(torch, "compiler", None), "is_exporting", None)
    if torch.jit.is_tracing() or (is_exporting is not None and is_exporting()):
        raise InputError(REASON)


class NoTorchScript(nn.Module):
    """A module that torch.jit.script refuses in one line, alone or as a part of another."""

    def __prepare_scriptable__(self) -> nn.Module:
        """torch.jit.script asks every module for a form of it that can be scripted.

        Raises:
            InputError: always
        """
        raise InputError(REASON)
