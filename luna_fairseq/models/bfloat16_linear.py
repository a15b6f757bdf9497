"""Linear layers with weights in bfloat16, for decoding on a CPU with ``--bf16``.

Only products are computed in bfloat16. Embeddings, norms, attention weights, the sums of causal attention and
log-probabilities stay in float32.
"""

from functools import lru_cache
from typing import Any, Optional, Sequence

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.models.onednn_linear import VECTORS, OneDnnLinear
from luna_fairseq.modules.fused_projections import FusedProjections
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention
from luna_fairseq.ops.plain_linear import is_plain_linear


@lru_cache(maxsize=None)
def has_bfloat16_products() -> bool:
    """Return True if torch multiplies in bfloat16 on this CPU (with avx512_bf16 or AMX), else False."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    if not any(getattr(torch.cpu, name, bool)() for name in names):
        return False
    try:
        BFloat16Linear(torch.ones(2, 2), None)(torch.ones(1, 2))
    except (AttributeError, RuntimeError):
        return False
    return True


def use_bfloat16(model: nn.Module) -> None:
    """Replace every plain linear layer of a float32 model with a :class:`BFloat16Linear`.

    Raises:
        InputError: The model is not in float32, or the CPU does not multiply in bfloat16.
    """
    weight = next(model.parameters())
    if weight.dtype != torch.float32:
        raise InputError(f"bf16 needs a float32 model on a CPU, got {str(weight.dtype)[6:]}. Remove --bf16")
    if not has_bfloat16_products():
        raise InputError("this CPU has no products in bfloat16 (avx512_bf16 or AMX). Remove --bf16")
    for module in list(model.modules()):
        linears = {name: child for name, child in module.named_children() if _is_replaced(child)}
        fused: Optional[BFloat16Linear] = None
        if isinstance(module, LunaCausalAttention):
            layers: Sequence[Any] = module.input_projections()
            if all(_is_replaced(layer) and layer.bias is not None for layer in layers):
                weights, biases = ([getattr(x, name) for x in layers] for name in ("weight", "bias"))
                fused = BFloat16Linear(torch.cat(weights), torch.cat(biases))
        for name, child in linears.items():
            setattr(module, name, BFloat16Linear(child.weight, child.bias))
        if isinstance(module, LunaCausalAttention):
            module.fused_x_proj = fused and FusedBFloat16Linear(module.input_projections(), fused)


def _is_replaced(layer: nn.Module) -> bool:
    return type(layer) in (nn.Linear, OneDnnLinear) and is_plain_linear(layer)


class BFloat16Linear(nn.Module):
    """Linear layer that multiplies in bfloat16, with inputs, bias and outputs in float32.

    Args:
        weight: float32 matrix [outputs, inputs].
        bias: float32 vector [outputs]; None if the layer has no bias.
    """

    def __init__(self, weight: Tensor, bias: Optional[Tensor]):
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().bfloat16(), VECTORS)
        self.bias = None if bias is None else bias.detach().clone()
        self.unpacked: Optional[Tensor] = None

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to float32 vectors [..., inputs]."""
        products = torch.ops.mkldnn._linear_pointwise(x.bfloat16(), self.packed, None, "none", [], "")
        return products.float() if self.bias is None else products + self.bias

    def select(self, outputs: Tensor) -> "BFloat16Linear":
        """Return a layer that computes only the outputs of these indices, and cache the unpacked weight."""
        if self.unpacked is None:
            self.unpacked = self.packed.to_dense()
        bias = None if self.bias is None else self.bias.index_select(0, outputs)
        return BFloat16Linear(self.unpacked.index_select(0, outputs), bias)


class FusedBFloat16Linear(FusedProjections):
    """Several bfloat16 linear layers with the same input, computed as one matrix multiplication.

    ``product`` is a layer with the weights of all ``layers``.
    """

    def __init__(self, layers: Sequence[nn.Module], product: BFloat16Linear):
        super().__init__(layers)
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        """Return the concatenated outputs of all layers for vectors [..., inputs]."""
        return self.product(x)
