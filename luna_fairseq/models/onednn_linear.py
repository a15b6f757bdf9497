"""Faster linear layers for float32 inference on a CPU, with weights in the memory layout of oneDNN.

With only a few input vectors, the run time of a linear layer is dominated by reading its weight. In every
call, ``torch.nn.functional.linear`` first copies the weight to the layout that oneDNN needs. The layers in
this module hold such a copy, made by :func:`use_onednn`. With 5 vectors (one sentence, beam size 5), they
take half the time. The copies double the memory used by the weights.
"""

from functools import lru_cache
from typing import Any, List, Optional, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.modules.luna_causal_attention import FusedProjections, LunaCausalAttention
from luna_fairseq.ops.absorbed import is_plain_linear
from luna_fairseq.ops.attention import is_recording_graph
from luna_fairseq.ops.forms import Form, FormTable, otherwise

# Number of vectors for which oneDNN optimizes the layout. The layout for 64 vectors was the fastest, or at
# most 2 % slower, for 1 to 1,000 vectors (512 to 2,048 inputs, 512 to 32,000 outputs, one thread, AVX-512,
# torch 2.13).
VECTORS = 64


class WeightCopy:
    """Copy of the weights and biases of linear layers with the same input, in the memory layout of oneDNN."""

    def __init__(self, layers: Sequence[Any]):
        self.versions = [(x, x._version) for x in _parameters(layers)]
        weight = torch.cat([layer.weight.detach() for layer in layers])
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, VECTORS)
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self.bias = torch.cat(biases) if biases else None

    @staticmethod
    def create(layers: Sequence[Any]) -> Optional["WeightCopy"]:
        """Copy the parameters of linear layers for oneDNN, or return None if oneDNN cannot multiply by them.

        oneDNN needs non-empty float32 parameters on a CPU that were not created in inference mode.
        """
        for x in _parameters(layers):
            if not (x.is_cpu and x.dtype is torch.float32 and x.numel()) or x.is_inference():
                return None
        return WeightCopy(layers) if has_onednn() else None

    def can_multiply(self, x: Tensor, layers: Sequence[Any]) -> bool:
        """Return True if the copy may be used in place of the layers' weights.

        This is the case for x in float32 on a CPU if gradients are disabled, torch captures no graph, and the
        parameters have not changed since they were copied. Changes to ``parameter.data`` go undetected.
        """
        # Cheap conditions first: this function is called 30 times per decoding step.
        if torch.is_grad_enabled() or x.dtype is not torch.float32 or not x.is_cpu or is_recording_graph():
            return False
        pairs = zip(_parameters(layers), self.versions)
        return all(x is copied and x._version == version for x, (copied, version) in pairs)

    def multiply(self, x: Tensor) -> Tensor:
        """Apply all layers to x [..., in_features], and concatenate their outputs in the last dimension."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


def _can_multiply(copied: Optional[WeightCopy], x: Tensor, layers: Sequence[Any]) -> bool:
    return copied is not None and copied.can_multiply(x, layers)


LINEAR_FORMS = FormTable(
    "linear layer of a prepared model in float32",
    Form(
        "onednn",
        "a copy of the current weights (use_onednn), a CPU, float32, no gradients, no graph",
        "half of the time with 5 vectors: the weight is not reordered in every call",
        _can_multiply,
        _can_multiply,
    ),
    Form("plain", "otherwise", "the memory of the copy", otherwise),
)


def _parameters(layers: Sequence[Any]) -> List[Tensor]:
    return [x for layer in layers for x in (layer.weight, layer.bias) if x is not None]


class _HoldsCopy(nn.Module):
    """Base class of layers that drop their oneDNN weights when trained, loaded, moved, copied or pickled."""

    copied: Optional[WeightCopy] = None

    def train(self, mode: bool = True) -> Any:
        """Set training or evaluation mode. In training mode, discard the layer's copy of its weight."""
        if mode:
            self.copied = None
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self.copied = None
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.copied = None
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> Any:
        return {**self.__dict__, "copied": None}  # oneDNN's tensors can be neither pickled nor copied


class OneDnnLinear(_HoldsCopy):
    """Linear layer that holds a copy of its weight in the memory layout of oneDNN.

    The constructor and :meth:`copy_weights` make the copy. The layer uses an unchanged copy for float32
    inputs on a CPU if gradients are disabled and torch captures no graph. Otherwise, it works like an
    ordinary linear layer. The results are the same up to rounding.

    Args:
        linear: layer to replace. The new layer uses the parameters of ``linear``.

    Example:
        >>> OneDnnLinear(nn.Linear(4, 6))(torch.ones(2, 1, 4)).shape
        torch.Size([2, 1, 6])
    """

    computes_plain_linear = True

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.bias = linear.bias
        self.training = linear.training
        self.copy_weights()

    def copy_weights(self) -> None:
        """Copy the current weight and bias to the memory layout of oneDNN."""
        self.copied = WeightCopy.create([self])

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., in_features] to [..., out_features], with the copied weight if possible."""
        copied: Any = self.copied
        if LINEAR_FORMS.choose(copied, x, (self,)) == "onednn":
            return copied.multiply(x)
        return F.linear(x, self.weight, self.bias)


class FusedOneDnnLinear(FusedProjections, _HoldsCopy):
    """Several linear layers with the same input, computed as one matrix multiplication.

    The weights are copied to the memory layout of oneDNN. Without usable copies, the original layers are
    called one by one.
    """

    def __init__(self, layers: Sequence[nn.Module]):
        super().__init__(layers)
        self.copy_weights()

    def copy_weights(self) -> None:
        """Copy the current weights of all layers to the memory layout of oneDNN."""
        self.copied = WeightCopy.create(self.layers)

    def replaces(self, layers: Sequence[nn.Module]) -> bool:
        """Return False without a copy, as on a GPU, where joining the outputs would only cost time."""
        return self.copied is not None and super().replaces(layers)

    def forward(self, x: Tensor) -> Tensor:
        """Apply all layers to x [..., in_features], and concatenate their outputs in the last dimension."""
        copied: Any = self.copied
        if LINEAR_FORMS.choose(copied, x, self.layers) == "onednn":
            return copied.multiply(x)
        return torch.cat([layer(x) for layer in self.layers], dim=-1)


@lru_cache(maxsize=None)
def has_onednn() -> bool:
    """Return True if torch can multiply by weights in oneDNN's memory layout (torch 2.1 or newer)."""
    try:
        weight = torch.ops.mkldnn._reorder_linear_weight(torch.ones(2, 2), VECTORS)
        torch.ops.mkldnn._linear_pointwise(torch.ones(1, 2), weight, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return False
    return True


def use_onednn(model: nn.Module) -> None:
    """Replace the linear layers of a model with oneDNN layers that hold copies of the original weights.

    The input projections of causal attention are fused into one layer. Parameters keep their names. A second
    call copies the weights again. Layers with hooks, and subclasses of ``nn.Linear``, are not replaced. If
    torch lacks oneDNN's products, nothing is changed.
    """
    if not has_onednn():
        return
    modules = list(model.modules())
    attentions = [x for x in modules if isinstance(x, LunaCausalAttention)]
    for module in modules:
        if isinstance(module, (OneDnnLinear, FusedOneDnnLinear)):
            module.copy_weights()
    for attention in attentions:
        layers = attention.input_projections()
        if attention.fused_x_proj is None and all(map(_is_replaced, layers)):
            attention.fused_x_proj = FusedOneDnnLinear(layers).train(attention.training)
    fused = {x for attention in attentions if attention.fused_x_proj for x in attention.fused_x_proj.layers}
    for module in modules:
        for name, child in list(module.named_children()):
            if _is_replaced(child) and child not in fused:
                setattr(module, name, OneDnnLinear(child))


def _is_replaced(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear and is_plain_linear(layer)
