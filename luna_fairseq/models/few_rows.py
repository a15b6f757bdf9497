"""The output projection while a sentence is decoded: few rows, and a large matrix, on a CPU."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

# MKL copies the weights of x W^T into another order before it multiplies, which costs more than the products
# of a few rows, once they no longer fit into the cache. W x^T is read as it is.
MOST_ROWS = 8
LEAST_WEIGHTS = 4_000_000


class FewRows(nn.Module):
    """A linear map without bias for inference on a CPU: the same numbers but for rounding, sooner.

    Args:
        projection: the map whose weight is used, under the same name
    """

    def __init__(self, projection: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = projection.in_features, projection.out_features
        self.weight = projection.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return [.., N] for x [.., K]."""
        rows = x.flatten(0, -2)
        if x.device.type != "cpu" or not 1 < len(rows) <= MOST_ROWS:
            return F.linear(x, self.weight)
        return (self.weight @ rows.t()).t().contiguous().view(*x.shape[:-1], -1)


def use_few_rows(model: nn.Module) -> None:
    """Put a :class:`FewRows` in place of the output projection of ``model``, if that is large."""
    decoder: Any = getattr(model, "decoder", None)
    projection: Any = getattr(decoder, "output_projection", None)
    if type(projection) is not nn.Linear or projection.bias is not None:
        return
    if projection.weight.numel() >= LEAST_WEIGHTS:
        decoder.output_projection = FewRows(projection)
