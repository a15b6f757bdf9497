"""The output projection while a sentence is decoded: few rows, and a large matrix, on a CPU."""

from typing import Any

from torch import Tensor, nn

# MKL copies the weights of x W^T into another order before it multiplies, which costs more than the products
# of a few rows, once they no longer fit into the cache. W x^T is read as it is.
MOST_ROWS = 8
LEAST_WEIGHTS = 4_000_000


class FewRows(nn.Linear):
    """torch's linear map without bias, for inference on a CPU: the same but for rounding, sooner."""

    def forward(self, input: Tensor) -> Tensor:
        """[.., N] of [.., K]."""
        rows = input.flatten(0, -2)
        if input.device.type != "cpu" or not 1 < len(rows) <= MOST_ROWS:
            return super().forward(input)
        return (self.weight @ rows.t()).t().contiguous().view(*input.shape[:-1], -1)


def use_few_rows(model: nn.Module) -> None:
    """Have the output projection of ``model``, where it is large, be a :class:`FewRows`."""
    projection: Any = getattr(getattr(model, "decoder", None), "output_projection", None)
    if type(projection) is not nn.Linear or projection.bias is not None:
        return
    if projection.weight.numel() >= LEAST_WEIGHTS:
        projection.__class__ = FewRows  # the same parameter under the same name
