"""Functions that build the dropout, the layer norms and the linear layers of an encoder or a decoder."""

from dataclasses import dataclass
from typing import Any, Callable, Optional

from torch import Tensor, nn

from luna_fairseq.modules.options import StackOptions
from luna_fairseq.modules.positions import build_positions, sinusoidal_table
from luna_fairseq.ops.dropout import dropout


class Dropout(nn.Dropout):
    """Dropout module that draws its masks with :func:`luna_fairseq.ops.dropout.dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training and self.p > 0 else x


def build_dropout(probability: float, owner: str) -> nn.Module:
    """Build a dropout module. ``owner``, a name that only fairseq's dropout module needs, is ignored."""
    return Dropout(probability)


def keep_linear(linear: nn.Linear) -> nn.Linear:
    """Return a linear layer unchanged, so that :class:`Builders` replaces no linear layer by default."""
    return linear


@dataclass(frozen=True)
class Builders:
    """Functions that build dropout, layer norms, linear layers and positions of an encoder or a decoder.

    The defaults build torch's modules. An adapter passes functions that build the modules of its framework.

    Attributes:
        dropout: function ``(probability, owner) -> dropout``, where owner is the name of the class that
            contains the module.
        norm: function ``(width, elementwise_affine=True) -> layer norm``.
        linear: function that takes a new linear layer, and returns this layer or a replacement.
        layers: function ``(layers) -> module list`` that may wrap each layer. The layers are a generator, so
            that each layer is wrapped before the next one is built.
        positions: function ``(options, padding_idx) -> position embedding or None``.
        packed_positions: function ``(length, width) -> table [length, width]`` of the positions that are
            added to the packed sequence P.
    """

    dropout: Callable[[float, str], Any] = build_dropout
    norm: Callable[..., nn.Module] = nn.LayerNorm
    linear: Callable[[nn.Linear], nn.Linear] = keep_linear
    layers: Callable[..., nn.ModuleList] = nn.ModuleList
    positions: Callable[[StackOptions, int], Optional[nn.Module]] = build_positions
    packed_positions: Callable[[int, int], Tensor] = sinusoidal_table


TORCH = Builders()
