"""Random numbers that are resampled during training and reproducible from a seed on any machine."""

from typing import Any, Dict, Tuple

import torch
from torch import Tensor, nn


class ResampledNormal(nn.Module):
    """Normally distributed random tensor, resampled every ``interval`` parameter updates, or never if 0.

    A checkpoint stores the seed and the sample number instead of the ``values``. Checkpoint averaging
    therefore cannot average two unrelated samples. With ``orthogonal``, the rows of a matrix are orthogonal.
    """

    def __init__(self, shape: Tuple[int, ...], interval: int = 0, orthogonal: bool = False):
        super().__init__()
        self.interval, self.orthogonal = interval, orthogonal
        self.register_buffer("seed", torch.randint(2**31, ()))
        self.register_buffer("drawn", torch.zeros((), dtype=torch.long))
        self.register_buffer("values", torch.empty(shape), persistent=False)
        self.draw(0)

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Load the seed and the number of the sample, and draw the same values again."""
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.draw(int(self.drawn))

    def draw(self, number: int) -> None:
        """Fill ``values`` with sample ``number`` (counted from 0), which the seed determines."""
        generator = torch.Generator().manual_seed(int(self.seed) + number)
        shape = tuple(self.values.shape)
        if self.orthogonal:
            values = orthogonal_rows(shape, generator)
        else:
            values = torch.randn(shape, generator=generator)
        self.values.copy_(values)
        self.drawn.fill_(number)

    def set_num_updates(self, num_updates: int) -> None:
        """Draw a new sample if ``interval`` updates have passed. fairseq calls this after each update."""
        if self.interval and self.training and num_updates // self.interval != int(self.drawn):
            self.draw(num_updates // self.interval)


def orthogonal_rows(shape: Tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw a random matrix of the given shape [M, K] with orthogonal rows.

    The norm of each row is distributed like the norm of a vector of K standard normal numbers. If M exceeds
    K, rows are orthogonal to each other only within blocks of K rows.
    """
    M, K = shape
    blocks = -(-M // K)
    q, r = torch.linalg.qr(torch.randn(blocks, K, K, generator=generator))
    # Without the signs of r's diagonal not all directions are equally likely, and the features are biased.
    directions = (q * r.diagonal(dim1=1, dim2=2).sign().unsqueeze(1)).flatten(0, 1)[:M]
    return directions * torch.randn(M, K, generator=generator).norm(dim=1, keepdim=True)
