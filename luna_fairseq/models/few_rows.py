"""Faster output projection for decoding on a CPU, where a large matrix multiplies few vectors."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

# For x W^T, MKL first copies the weights into another order. If the weights exceed the cache, the copy takes
# longer than the products with a few vectors. W x^T needs no copy.
MOST_VECTORS = 8
LEAST_WEIGHTS = 4_000_000


class FewRows(nn.Module):
    """Linear layer without bias that is faster for 2 to 8 input vectors on a CPU.

    The results equal those of the replaced layer up to rounding.

    Args:
        projection: layer to replace, whose weight is shared

    Example:
        >>> import torch
        >>> FewRows(nn.Linear(4, 6, bias=False))(torch.ones(2, 1, 4)).shape
        torch.Size([2, 1, 6])
    """

    def __init__(self, projection: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = projection.in_features, projection.out_features
        self.weight = projection.weight

    def forward(self, x: Tensor) -> Tensor:
        """Project vectors [.., K] to vectors [.., N]."""
        vectors = x.flatten(0, -2)
        if x.device.type != "cpu" or not 1 < len(vectors) <= MOST_VECTORS:
            return F.linear(x, self.weight)
        return (self.weight @ vectors.t()).t().contiguous().view(*x.shape[:-1], -1)


def use_few_rows(model: nn.Module) -> None:
    """Replace the output projection of a model's decoder by a :class:`FewRows` if it is large.

    Args:
        model: model, changed in place; nothing happens if it has no decoder
    """
    decoder: Any = getattr(model, "decoder", None)
    projection: Any = getattr(decoder, "output_projection", None)
    if type(projection) is not nn.Linear or projection.bias is not None:
        return
    if projection.weight.numel() >= LEAST_WEIGHTS:
        decoder.output_projection = FewRows(projection)
