"""Random numbers that an attention draws anew in training, the same on every machine and after resuming."""

from typing import Any, Dict, Tuple

import torch
from torch import Tensor, nn


class Drawing(nn.Module):
    """Normal random numbers; drawn anew whenever training has made so many more updates.

    A checkpoint has what they are drawn from, two integers: the mean of two drawings, which averaging would
    take of the numbers, is none.

    Args:
        shape: of what is drawn
        interval: updates between two drawings; 0 keeps the first
        orthogonal: the rows of every block of as many rows as columns are orthogonal, with the lengths of
            normal rows
    """

    def __init__(self, shape: Tuple[int, ...], interval: int = 0, orthogonal: bool = False):
        super().__init__()
        self.interval, self.orthogonal = interval, orthogonal
        self.register_buffer("seed", torch.randint(2**31, ()))
        self.register_buffer("drawn", torch.zeros((), dtype=torch.long))
        self.register_buffer("values", torch.empty(shape), persistent=False)
        self.draw(0)

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        state_dict.pop(f"{prefix}values", None)  # in earlier checkpoints, averaged ones among them
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.draw(int(self.drawn))

    def draw(self, number: int) -> None:
        """Draw for the ``number``-th time."""
        generator = torch.Generator().manual_seed(int(self.seed) + number)
        shape = tuple(self.values.shape)
        if self.orthogonal:
            values = orthogonal_rows(shape, generator)
        else:
            values = torch.randn(shape, generator=generator)
        self.values.copy_(values)
        self.drawn.fill_(number)

    def set_num_updates(self, num_updates: int) -> None:
        """fairseq says here how many updates there were."""
        if self.interval and self.training and num_updates // self.interval != int(self.drawn):
            self.draw(num_updates // self.interval)


def orthogonal_rows(shape: Tuple[int, ...], generator: torch.Generator) -> Tensor:
    """[M, K], each row normal, K at a time orthogonal."""
    M, K = shape
    blocks = -(-M // K)
    q, r = torch.linalg.qr(torch.randn(blocks, K, K, generator=generator))
    # Without the signs of r's diagonal not all directions are equally likely, and the features are biased.
    directions = (q * r.diagonal(dim1=1, dim2=2).sign().unsqueeze(1)).flatten(0, 1)[:M]
    return directions * torch.randn(M, K, generator=generator).norm(dim=1, keepdim=True)
