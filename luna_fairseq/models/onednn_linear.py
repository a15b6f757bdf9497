"""Faster linear layers for float32 inference on a CPU, with weights in the memory layout of oneDNN.

With only a few input vectors, the run time of a linear layer is dominated by reading its weight. In every
call, ``torch.nn.functional.linear`` first copies the weight to the layout that oneDNN needs. The layers in
this module cache this copy. With 5 vectors (one sentence, beam size 5), they take half the time. The copies
double the memory used by the weights.
"""

from functools import lru_cache
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention
from luna_fairseq.ops.attention import is_recording_graph

# Number of vectors for which oneDNN optimizes the layout. The layout for 64 vectors was the fastest, or at
# most 2 % slower, for 1 to 1,000 vectors (512 to 2,048 inputs, 512 to 32,000 outputs, one thread, AVX-512,
# torch 2.13).
VECTORS = 64


class OneDnnLinear(nn.Module):
    """Linear layer that caches a copy of its weight in the memory layout of oneDNN.

    The copy is made on the first call, and renewed whenever the weight has changed. The layer falls back to
    ``torch.nn.functional.linear`` on a GPU, in half precision, with gradients, or while torch records a
    graph. Both give the same results up to rounding.

    Args:
        linear: layer to replace. Its parameters are shared.

    Example:
        >>> OneDnnLinear(nn.Linear(4, 6))(torch.ones(2, 1, 4)).shape
        torch.Size([2, 1, 6])
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.bias = linear.bias
        self.reordered = ReorderedWeights()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer.

        Args:
            x: vectors [..., inputs].

        Returns:
            Vectors [..., outputs].
        """
        if not can_use_onednn(x, self.weight):
            return F.linear(x, self.weight, self.bias)
        return self.reordered.multiply(x, [self.weight], None if self.bias is None else [self.bias])

    def linear_parameters(self) -> Tuple[Tensor, Tensor]:
        """Return the weight and bias.

        Attention layers combine them with the weights of other layers; see
        :func:`luna_fairseq.modules.heads.linear_parameters`.

        Returns:
            Weight [outputs, inputs], and bias [outputs] (None if there is no bias).
        """
        return self.weight, self.bias

    def _apply(self, *args: Any, **kwargs: Any) -> "OneDnnLinear":
        """Discard the cached weight, and move the layer to another device or dtype.

        Overrides the method of :class:`torch.nn.Module` that implements ``to``, ``half`` and similar methods.

        Args:
            args: arguments of torch's method.
            kwargs: keyword arguments of torch's method.

        Returns:
            This layer.
        """
        self.reordered = ReorderedWeights()
        return super()._apply(*args, **kwargs)


class FusedOneDnnLinear(nn.Module):
    """All input projections of a causal attention module, fused into one linear layer for speed.

    The parameters stay in the attention module. This module has none.

    Args:
        attention: attention module whose projections are fused.
    """

    def __init__(self, attention: LunaCausalAttention):
        super().__init__()
        self.owner = (attention,)  # in a tuple, because torch would otherwise register it as a submodule
        self.reordered = ReorderedWeights()

    def forward(self, x: Tensor) -> Tensor:
        """Apply all projections to the attention's input.

        Args:
            x: vectors [..., inputs].

        Returns:
            Vectors [..., total number of outputs], with the projections concatenated in the order of
            ``attention.x_projections``.
        """
        (attention,) = self.owner
        layers = [getattr(attention, f"{name}_proj") for name in attention.x_projections]
        weights = [layer.weight for layer in layers]
        if not all(can_use_onednn(x, weight) for weight in weights):
            return torch.cat([layer(x) for layer in layers], dim=-1)
        return self.reordered.multiply(x, weights, [layer.bias for layer in layers])

    def _apply(self, *args: Any, **kwargs: Any) -> "FusedOneDnnLinear":
        """Discard the cached weights, and move the module to another device or dtype.

        Overrides the method of :class:`torch.nn.Module` that implements ``to``, ``half`` and similar methods.

        Args:
            args: arguments of torch's method.
            kwargs: keyword arguments of torch's method.

        Returns:
            This module.
        """
        self.reordered = ReorderedWeights()
        return super()._apply(*args, **kwargs)


class ReorderedWeights:
    """Cached weights and biases of one or more linear layers, in the memory layout of oneDNN.

    The cache is initially empty. :meth:`multiply` fills and renews it.
    """

    def __init__(self) -> None:
        self.weight: Optional[Tensor] = None
        self.bias: Optional[Tensor] = None
        # Address and version of each parameter at the time of the copy.
        self.versions: List[Tuple[int, int]] = []

    def multiply(self, x: Tensor, weights: List[Tensor], biases: Optional[List[Tensor]]) -> Tensor:
        """Apply one or more linear layers to the same input.

        The weights are copied on the first call, and again whenever a parameter has changed.

        Args:
            x: vectors [..., inputs].
            weights: weight [outputs, inputs] of each layer.
            biases: bias [outputs] of each layer; None if the layers have no bias.

        Returns:
            Vectors [..., total number of outputs].
        """
        versions = [(part.data_ptr(), part._version) for part in (*weights, *(biases or ()))]
        if self.versions != versions:
            weight = weights[0] if len(weights) == 1 else torch.cat(weights)
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), VECTORS)
            self.bias = None if biases is None else torch.cat(biases).detach()
            self.versions = versions
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")

    def __reduce__(self) -> Tuple[Any, ...]:
        return ReorderedWeights, ()  # oneDNN's tensors can be neither pickled nor copied


def can_use_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return True if a linear layer can use a cached weight for a given input.

    This requires float32 on a CPU, no gradients, and no graph being recorded by torch.

    Args:
        x: input of the layer.
        weight: weight of the layer.
    """
    # Cheap conditions first: this function is called 30 times per decoding step.
    if torch.is_grad_enabled() or x.dtype is not torch.float32 or weight.dtype is not torch.float32:
        return False
    return x.is_cpu and weight.is_cpu and not (weight.is_inference() or is_recording_graph())


@lru_cache(maxsize=None)
def has_onednn() -> bool:
    """Return True if torch can multiply by weights in the memory layout of oneDNN on this CPU.

    This requires torch 2.1 or newer, built with oneDNN.
    """
    try:
        weight = torch.ops.mkldnn._reorder_linear_weight(torch.ones(2, 2), VECTORS)
        torch.ops.mkldnn._linear_pointwise(torch.ones(1, 2), weight, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return False
    return True


def use_onednn(model: nn.Module) -> None:
    """Replace the linear layers of a model with :class:`OneDnnLinear`, if torch supports oneDNN on this CPU.

    Args:
        model: model, modified in place. Parameters keep their names.
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
