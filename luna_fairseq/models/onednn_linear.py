"""Linear layers for float32 inference on a CPU that store their weights in the order of oneDNN.

The product of a few vectors with a large matrix takes as long as reading the matrix. In every call,
``torch.nn.functional.linear`` first copies the matrix into the order that the product needs. The layers of
this module store the reordered matrix. For 5 vectors (a sentence with a beam of 5), they need half of the
time. The reordered matrices need as much memory as the weights.
"""

from functools import lru_cache
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention
from luna_fairseq.ops.attention import is_recording_graph

# Number of vectors for which oneDNN chooses the order. The order for 64 vectors was the fastest or within 2 %
# of it for 1 to 1,000 vectors (512 to 2,048 inputs, 512 to 32,000 outputs, one thread, AVX-512, torch 2.13).
VECTORS = 64


class OneDnnLinear(nn.Module):
    """Linear layer that shares the parameters of another layer and stores a reordered copy of its weight.

    The copy is made in the first call, and again after a change of the weight. In four cases, the layer calls
    ``torch.nn.functional.linear`` instead: on a GPU, in other precisions, if gradients are enabled, and while
    torch records a graph. Results are equal up to rounding.

    Args:
        linear: layer to replace, whose parameters are shared.

    Example:
        >>> OneDnnLinear(nn.Linear(4, 6))(torch.ones(2, 1, 4)).shape
        torch.Size([2, 1, 6])
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.bias = linear.bias
        self.reordered = Reordered()

    def forward(self, x: Tensor) -> Tensor:
        """Project vectors [.., inputs] to vectors [.., outputs]."""
        if not can_use_onednn(x, self.weight):
            return F.linear(x, self.weight, self.bias)
        return self.reordered.multiply(x, [self.weight], None if self.bias is None else [self.bias])

    def linear_parameters(self) -> Tuple[Tensor, Tensor]:
        """Return the weight and the bias, for a memory that absorbs them."""
        return self.weight, self.bias

    def _apply(self, *args: Any, **kwargs: Any) -> "OneDnnLinear":
        """Drop the reordered copy before the layer moves to another device or type.

        Args:
            args: arguments of torch's method.
            kwargs: arguments of torch's method.

        Returns:
            This layer.
        """
        self.reordered = Reordered()
        return super()._apply(*args, **kwargs)


class FusedOneDnnLinear(nn.Module):
    """All projections of X in a causal attention as one linear layer, with the outputs one after the other.

    The parameters remain those of the attention, and are no parameters of this module.

    Args:
        attention: causal attention whose projections are computed.
    """

    def __init__(self, attention: LunaCausalAttention):
        super().__init__()
        self.owner = (attention,)  # in a tuple, because torch would register a module as a part of this one
        self.reordered = Reordered()

    def forward(self, x: Tensor) -> Tensor:
        """Apply all projections of the attention's input in one product.

        Args:
            x: vectors [.., inputs].

        Returns:
            Vectors [.., outputs of all projections].
        """
        (attention,) = self.owner
        layers = [getattr(attention, f"{name}_proj") for name in attention.x_projections]
        weights = [layer.weight for layer in layers]
        if not all(can_use_onednn(x, weight) for weight in weights):
            return torch.cat([layer(x) for layer in layers], dim=-1)
        return self.reordered.multiply(x, weights, [layer.bias for layer in layers])

    def _apply(self, *args: Any, **kwargs: Any) -> "FusedOneDnnLinear":
        """Drop the reordered copy before the layer moves to another device or type.

        Args:
            args: arguments of torch's method.
            kwargs: arguments of torch's method.

        Returns:
            This layer.
        """
        self.reordered = Reordered()
        return super()._apply(*args, **kwargs)


class Reordered:
    """Reordered copy of the weights of one or several layers, and of their biases."""

    def __init__(self) -> None:
        self.weight: Optional[Tensor] = None
        self.bias: Optional[Tensor] = None
        # Memory and version of each parameter at the time of the copy.
        self.source: List[Tuple[int, int]] = []

    def multiply(self, x: Tensor, weights: List[Tensor], biases: Optional[List[Tensor]]) -> Tensor:
        """Project vectors, after the copy is made or renewed if that is necessary.

        Args:
            x: vectors [.., inputs].
            weights: weights of the layers, each [outputs, inputs].
            biases: biases of the layers, each [outputs], or None.

        Returns:
            Vectors [.., outputs of all layers].
        """
        source = [(part.data_ptr(), part._version) for part in (*weights, *(biases or ()))]
        if self.source != source:
            weight = weights[0] if len(weights) == 1 else torch.cat(weights)
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), VECTORS)
            self.bias = None if biases is None else torch.cat(biases).detach()
            self.source = source
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")

    def __reduce__(self) -> Tuple[Any, ...]:
        return Reordered, ()  # oneDNN's tensors can be neither pickled nor copied


def can_use_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return True if a reordered copy of a weight can be used for an input.

    Args:
        x: input of the linear layer.
        weight: weight of the linear layer.
    """
    # Cheap conditions first: the function is called 30 times in a step of decoding.
    if torch.is_grad_enabled() or x.dtype is not torch.float32 or weight.dtype is not torch.float32:
        return False
    return x.is_cpu and weight.is_cpu and not (weight.is_inference() or is_recording_graph())


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
        model: model, changed in place; parameters keep their names.
    """
    if not has_onednn():
        return
    for module in list(model.modules()):
        if isinstance(module, LunaCausalAttention) and module.fused_x_proj is None:
            if all(type(getattr(module, f"{name}_proj")) is nn.Linear for name in module.x_projections):
                module.fused_x_proj = FusedOneDnnLinear(module)
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, OneDnnLinear(child))
