"""Linear layers with weights in bfloat16, for decoding on a CPU with ``--bf16``.

Only the matrix products of linear layers use bfloat16. Embeddings, norms, attention weights, the running sums
of causal attention and log-probabilities stay in float32.
"""

from functools import lru_cache
from typing import Any, Dict, Optional

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.models.onednn_linear import VECTORS
from luna_fairseq.models.replaced_linears import replace_linears


@lru_cache(maxsize=None)
def has_bfloat16_products() -> bool:
    """Return True if this CPU and torch support bfloat16 matrix multiplication (avx512_bf16 or AMX)."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    if not any(getattr(torch.cpu, name, bool)() for name in names):
        return False
    try:
        BFloat16Linear(torch.ones(2, 2), None)(torch.ones(1, 2))
    except (AttributeError, RuntimeError):
        return False
    return True


def use_bfloat16(model: nn.Module) -> None:
    """Replace every linear layer without hooks in a float32 model with a :class:`BFloat16Linear`.

    Raises:
        InputError: The model is not in float32, or the CPU does not support bfloat16 products.
    """
    weight = next(model.parameters())
    if weight.dtype != torch.float32:
        raise InputError(f"bf16 needs a float32 model on a CPU, got {str(weight.dtype)[6:]}. Remove --bf16")
    if not has_bfloat16_products():
        raise InputError("this CPU has no products in bfloat16 (avx512_bf16 or AMX). Remove --bf16")
    replace_linears(model, BFloat16Linear)


class BFloat16Linear(nn.Module):
    """Linear layer that multiplies in bfloat16, with inputs, bias and outputs in float32.

    Args:
        weight: float32 matrix [out_features, in_features].
        bias: float32 vector [out_features]. None for a layer without bias.
    """

    def __init__(self, weight: Tensor, bias: Optional[Tensor]):
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().bfloat16(), VECTORS)
        self.bias = None if bias is None else bias.detach().clone()
        self.unpacked: Optional[Tensor] = None

    def forward(self, x: Tensor) -> Tensor:
        """Map float32 vectors [..., in_features] to [..., out_features], with a bfloat16 matrix product."""
        products = torch.ops.mkldnn._linear_pointwise(x.bfloat16(), self.packed, None, "none", [], "")
        return products.float() if self.bias is None else products + self.bias

    def __getstate__(self) -> Dict[str, Any]:
        # Packed weights can neither be copied nor pickled.
        return {**self.__dict__, "packed": None, "unpacked": self.packed.to_dense()}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.unpacked, VECTORS)

    def select(self, outputs: Tensor) -> "BFloat16Linear":
        """Return a layer that computes only N of the output features, with the indices ``outputs`` [N]."""
        if self.unpacked is None:
            self.unpacked = self.packed.to_dense()
        bias = None if self.bias is None else self.bias.index_select(0, outputs)
        return BFloat16Linear(self.unpacked.index_select(0, outputs), bias)
