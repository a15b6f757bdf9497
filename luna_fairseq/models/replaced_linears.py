"""Replacement of a model's linear layers with faster 8-bit or bfloat16 layers, for decoding on a CPU."""

from typing import Callable, Optional, Sequence

import torch
from torch import Tensor, nn

from fairseq.modules.quant_noise import quant_noise
from luna_fairseq.models.onednn_linear import OneDnnLinear
from luna_fairseq.modules.luna_causal_attention import FusedProjections, LunaCausalAttention
from luna_fairseq.ops.absorbed import is_plain_linear


class FusedProduct(FusedProjections):
    """Linear layer ``product`` that has the concatenated weights of ``layers``, which have one input."""

    def __init__(self, layers: Sequence[nn.Module], product: nn.Module):
        super().__init__(layers)
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        """Apply all layers to x [..., in_features], and concatenate their outputs in the last dimension."""
        return self.product(x)


def remove_quant_noise(model: nn.Module) -> None:
    """Remove the hooks of ``--quant-noise-pq``, which have no effect in evaluation, from a prepared model.

    Layers with hooks would not be replaced.
    """
    for module in model.modules():
        for key, hook in list(module._forward_pre_hooks.items()):
            if hook.__module__ == quant_noise.__module__:
                del module._forward_pre_hooks[key]


def replace_linears(model: nn.Module, build: Callable[[Tensor, Optional[Tensor]], nn.Module]) -> None:
    """Replace every linear layer of a model with ``build(weight, bias)``, for example an 8-bit layer.

    The input projections of causal attention are fused into one layer. Layers with hooks, and subclasses of
    ``nn.Linear``, are not replaced.
    """
    for module in list(model.modules()):
        linears = {name: child for name, child in module.named_children() if _is_replaced(child)}
        product = None
        if isinstance(module, LunaCausalAttention):
            layers = module.input_projections()
            if all(_is_replaced(layer) and layer.bias is not None for layer in layers):
                weights, biases = ([getattr(layer, name) for layer in layers] for name in ("weight", "bias"))
                product = build(torch.cat(weights), torch.cat(biases))
        for name, child in linears.items():
            setattr(module, name, build(child.weight, child.bias))
        if linears and isinstance(module, LunaCausalAttention):
            module.fused_x_proj = product and FusedProduct(module.input_projections(), product)


def _is_replaced(layer: nn.Module) -> bool:
    return type(layer) in (nn.Linear, OneDnnLinear) and is_plain_linear(layer)
