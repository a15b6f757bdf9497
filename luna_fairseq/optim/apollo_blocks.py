"""One update of Apollo on a CPU, block by block: what is read once stays in the cache until it is written."""

from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.optim.apollo_update import norm_offset, single_tensor_update

# Elements of a block, and of the largest tensor for which the formulas as they are written are as fast.
BLOCK = 1 << 19
SMALL_TENSOR = 1 << 16


def blocked_update(*tensors: Tensor, step: int, group: Dict[str, Any]) -> None:
    """The arguments and the effect of :func:`~luna_fairseq.optim.apollo_update.single_tensor_update`."""
    if tensors[0].numel() <= SMALL_TENSOR or not all(x.is_contiguous() for x in tensors):
        single_tensor_update(*tensors, step=step, group=group)
    else:
        _Update(tensors, step, group).run()


class _Update:
    """The update of one tensor: two passes over it, three for the stable weight decay, which needs a mean
    between."""

    def __init__(self, tensors: Tuple[Tensor, ...], step: int, group: Dict[str, Any]):
        self.blocks = [x.view(-1).split(BLOCK) for x in tensors]
        self.size = tensors[0].numel()
        self.group = group
        self.alpha = (1 - group["beta"]) / (1 - group["beta"] ** step)
        self.decay = group["weight_decay"]
        self.decay_type = group["weight_decay_type"] if self.decay != 0 else None

    def run(self) -> None:
        change, floor = self._curvature_change()
        denominators: Any = 0.0
        for p, y, m, hessian, d in self._with_deviation():
            hessian.addcmul_(d * d, change)
            m.add_(y, alpha=self.alpha)
            denominator = self._denominator(hessian, floor)
            torch.div(m, denominator, out=d)
            if self.decay_type == "decoupled":
                d.add_(p, alpha=self.decay)
            if self.decay_type == "stable":
                denominators = denominators + denominator.sum()
            else:
                p.add_(d, alpha=-self.group["lr"])
        if self.decay_type == "stable":
            for p, _, _, _, d in zip(*self.blocks):
                d.addcmul_(p, self.decay * self.size / denominators)
                p.add_(d, alpha=-self.group["lr"])

    def _with_deviation(self) -> Iterator[Tuple[Tensor, ...]]:
        """Blocks of p, y = g - m, m, B and d."""
        for p, g, m, hessian, d in zip(*self.blocks):
            if self.decay_type == "L2":
                g = g.add(p, alpha=self.decay)
            yield p, g - m, m, hessian, d

    def _curvature_change(self) -> Tuple[Tensor, Optional[Tensor]]:
        """What d**2 is multiplied with and added to B, and the largest \\|y\\| (belief)."""
        belief = self.group["rebound"] == "belief"
        fourth: Any = 0.0
        product: Any = 0.0
        largest: List[Tensor] = []
        for _, y, _, hessian, d in self._with_deviation():
            squares = d * d
            fourth = fourth + squares.dot(squares)
            product = product + self.alpha * y.dot(d) + hessian.dot(squares)
            if belief:
                largest.append(y.abs().max())
        n_squared = fourth.pow(0.25).add_(norm_offset(self.group)).square_()
        # Divided twice, as n**4 may be too small for a float.
        return -(product / n_squared / n_squared), torch.stack(largest).max() if belief else None

    def _denominator(self, hessian: Tensor, floor: Optional[Tensor]) -> Tensor:
        if floor is None:
            return hessian.abs().clamp_(min=self.group["sigma"])
        return torch.max(hessian.abs(), floor).add_(self.group["eps"] / self.alpha)
