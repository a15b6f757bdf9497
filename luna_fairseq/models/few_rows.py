"""Faster output projection for decoding on a CPU, where a large matrix multiplies few vectors."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

# For x W^T, MKL first copies the weights into another order. If the weights exceed the cache, the copy costs
# more than the products of a few vectors. W x^T needs no copy.
MOST_ROWS = 8
LEAST_WEIGHTS = 4_000_000


class FewRows(nn.Module):
    """Linear layer without bias that is faster for 2 to 8 input vectors on a CPU.

    The results equal those of the replaced layer up to rounding.

    Args:
        projection: layer to replace, whose weight is shared
    """

    def __init__(self, projection: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = projection.in_features, projection.out_features
        self.weight = projection.weight

    def forward(self, x: Tensor) -> Tensor:
        """Map x [.., K] to [.., N]."""
        rows = x.flatten(0, -2)
        if x.device.type != "cpu" or not 1 < len(rows) <= MOST_ROWS:
            return F.linear(x, self.weight)
        return (self.weight @ rows.t()).t().contiguous().view(*x.shape[:-1], -1)


def use_few_rows(model: nn.Module) -> None:
    """Replace a large output projection of the decoder of ``model`` by a :class:`FewRows`."""
    decoder: Any = getattr(model, "decoder", None)
    projection: Any = getattr(decoder, "output_projection", None)
    if type(projection) is not nn.Linear or projection.bias is not None:
        return
    if projection.weight.numel() >= LEAST_WEIGHTS:
        decoder.output_projection = FewRows(projection)
