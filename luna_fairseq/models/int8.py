"""Weights in 8 bits for decoding on a CPU, by torch's products that round call by call."""

import warnings
from functools import lru_cache
from typing import Any, Optional

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention


def quantise(model: nn.Module) -> None:
    """Keep the weights of linear maps, the output's among them, in 8 bits, a scale for each row; what they
    are multiplied with is rounded call by call. Embeddings, norms and P stay as they are.

    Args:
        model: in float32 on the CPU; changed in place, for evaluation alone

    Raises:
        InputError: the model is on a GPU or in half precision, or torch has no such products for this CPU
    """
    weight = next(model.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        raise InputError(
            f"int8 is for float32 models on a CPU, this one is in {str(weight.dtype)[6:]} on "
            f"{weight.device}: leave int8 out, or add --cpu and leave --fp16 and --bf16 out"
        )
    if not {"x86", "fbgemm", "onednn", "qnnpack"}.intersection(torch.backends.quantized.supported_engines):
        raise InputError("this torch has no products in 8 bits for this CPU: leave int8 out")
    for module in list(model.modules()):
        if isinstance(module, LunaCausalAttention):
            parts = [getattr(module, f"{name}_proj") for name in module.read_of_x]
            module.in_one = Linear8(*(torch.cat([getattr(x, n) for x in parts]) for n in ("weight", "bias")))
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, Linear8(child.weight, child.bias))


class Linear8(nn.Module):
    """A linear map with its weights in 8 bits, and 8 bits of what comes in, where torch's own module has 7.

    Args:
        weight: [outputs, inputs]
        bias: [outputs], or None
    """

    def __init__(self, weight: Tensor, bias: Optional[Tensor]):
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack(
            in_8_bits(weight.detach(), 8 if sums_hold_8_bits() else 7), bias
        )

    def forward(self, x: Tensor) -> Tensor:
        """[.., inputs] to [.., outputs]."""
        products: Any = torch.ops.quantized.linear_dynamic
        return products(x, self.packed, reduce_range=False)


def in_8_bits(weight: Tensor, bits: int = 8) -> Tensor:
    """A matrix [M, N] of whole numbers of so many bits, with a scale for each row."""
    scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(weight.dtype).eps) / (2 ** (bits - 1) - 0.5)
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of what a later version may lack
        return torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)


@lru_cache(maxsize=None)
def sums_hold_8_bits() -> bool:
    """Whether this CPU adds two products of the largest numbers in 8 bits without a loss (VNNI), not in 16
    bits: else weights have 7."""
    ones = torch.ones(1, 64)
    packed = torch.ops.quantized.linear_prepack(in_8_bits(ones), None)
    return bool(torch.ops.quantized.linear_dynamic(ones, packed, reduce_range=False) > 63)
