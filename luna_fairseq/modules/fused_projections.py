"""Interface of modules that compute all input projections of causal attention in a single product."""

from typing import Sequence, Tuple

from torch import Tensor, nn

from luna_fairseq.ops.absorbed import has_hooks


class FusedProjections(nn.Module):
    """Base class of modules that apply several linear layers to one input.

    Args:
        layers: layers to replace. They stay in their attention module, with their parameters.
    """

    def __init__(self, layers: Sequence[nn.Module]):
        super().__init__()
        self.layers: Tuple[nn.Module, ...] = tuple(layers)  # torch does not register submodules in a tuple

    def replaces(self, layers: Sequence[nn.Module]) -> bool:
        """Return True if these are the layers that were fused, and calling them would run no hook.

        Return False otherwise: the layers must then be called one by one.
        """
        return all(x is y and not has_hooks(x) for x, y in zip(layers, self.layers))

    def forward(self, x: Tensor) -> Tensor:
        """Return the concatenated outputs [..., total number of outputs] for vectors [..., inputs]."""
        raise NotImplementedError
