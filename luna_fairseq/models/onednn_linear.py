"""Linear layers for float32 inference on a CPU that store their weights in the order of oneDNN.

The product of a few vectors with a large matrix takes as long as reading the matrix. In every call,
``torch.nn.functional.linear`` first copies the matrix into the order that the product needs. The layers of
this module store the reordered matrix. For 5 vectors (a sentence with a beam of 5), they need half of the
time. The reordered matrices need as much memory as the weights.
"""

from functools import lru_cache
from typing import Any, Dict, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.ops.attention import in_a_graph

# Number of vectors for which oneDNN chooses the order. The order for 64 vectors was the fastest or within 2 %
# of it for 1 to 1,000 vectors (512 to 2,048 inputs, 512 to 32,000 outputs, one thread, AVX-512, torch 2.13).
VECTORS = 64


class OneDnnLinear(nn.Module):
    """Linear layer that shares the parameters of another layer and stores a reordered copy of its weight.

    The copy is made in the first call, and again after a change of the weight. In four cases, the layer calls
    ``torch.nn.functional.linear`` instead: on a GPU, in other precisions, if gradients are enabled, and while
    torch records a graph. Results are equal up to rounding.

    Args:
        linear: layer to replace, whose parameters are shared

    Example:
        >>> OneDnnLinear(nn.Linear(4, 6))(torch.ones(2, 1, 4)).shape
        torch.Size([2, 1, 6])
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.bias = linear.bias
        self.reordered: Optional[Tensor] = None
        self.version = 0  # version of the weight that was reordered

    def forward(self, x: Tensor) -> Tensor:
        """Project vectors [.., inputs] to vectors [.., outputs]."""
        weight = self.weight
        is_plain = x.dtype == weight.dtype == torch.float32 and x.device.type == weight.device.type == "cpu"
        if not is_plain or torch.is_grad_enabled() or weight.is_inference() or in_a_graph():
            return F.linear(x, weight, self.bias)
        if self.reordered is None or self.version != weight._version:
            self.reordered = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), VECTORS)
            self.version = weight._version
        return torch.ops.mkldnn._linear_pointwise(x, self.reordered, self.bias, "none", [], "")

    def _apply(self, *args: Any, **kwargs: Any) -> "OneDnnLinear":
        """Drop the reordered copy before the layer moves to another device or type."""
        self.reordered = None
        return super()._apply(*args, **kwargs)

    def __getstate__(self) -> Dict[str, Any]:
        # The reordered copy can be neither pickled nor copied.
        return {**self.__dict__, "reordered": None}


@lru_cache(maxsize=None)
def has_onednn() -> bool:
    """Return True if this torch has products with reordered weights for this CPU.

    Torch has these products since 2.1.
    """
    try:
        weight = torch.ops.mkldnn._reorder_linear_weight(torch.ones(2, 2), VECTORS)
        torch.ops.mkldnn._linear_pointwise(torch.ones(1, 2), weight, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return False
    return True


def use_onednn(model: nn.Module) -> None:
    """Replace the linear layers of a model by :class:`OneDnnLinear`, if this torch supports them.

    Args:
        model: model, changed in place; parameters keep their names
    """
    if not has_onednn():
        return
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, OneDnnLinear(child))
