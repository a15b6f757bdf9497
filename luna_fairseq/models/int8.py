"""Weights in 8 bits for decoding on a CPU, by torch's dynamic quantisation."""

import warnings
from functools import lru_cache
from typing import Any, Sequence

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of what a later version may lack
        _quantise(model)


def _quantise(model: nn.Module) -> None:
    quantization: Any = getattr(torch, "ao", torch).quantization
    rows = quantization.PerChannelMinMaxObserver.with_args(
        dtype=torch.qint8, qscheme=torch.per_channel_symmetric, reduce_range=not sums_hold_8_bits()
    )
    by_row = quantization.per_channel_dynamic_qconfig._replace(weight=rows)
    quantization.quantize_dynamic(model, {nn.Linear: by_row}, mapping={nn.Linear: Linear8}, inplace=True)
    for module in model.modules():
        if isinstance(module, LunaCausalAttention):
            module.in_one = side_by_side([getattr(module, f"{name}_proj") for name in module.read_of_x])


class Linear8(nn.quantized.dynamic.Linear):
    """torch's, with 8 bits of what comes in where that has 7."""

    def forward(self, x: Tensor) -> Tensor:
        products: Any = torch.ops.quantized.linear_dynamic
        return products(x, self._packed_params._packed_params, reduce_range=False)


@lru_cache(maxsize=None)
def sums_hold_8_bits() -> bool:
    """Whether this CPU adds two products of the largest numbers in 8 bits without a loss (VNNI), not in 16
    bits: else weights have 7."""
    ones = torch.ones(1, 64)
    weight = torch.quantize_per_tensor(ones, 1 / 127, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, None)
    return bool(torch.ops.quantized.linear_dynamic(ones, packed, reduce_range=False) > 63)


def side_by_side(parts: Sequence[Any]) -> nn.Module:
    """One map to the outputs of the quantised linear maps ``parts``: the same numbers in one call."""
    weights = [part.weight() for part in parts]
    scales, zeros = (
        torch.cat([of(weight) for weight in weights])
        for of in (torch.Tensor.q_per_channel_scales, torch.Tensor.q_per_channel_zero_points)
    )
    rows = torch.cat([weight.dequantize() for weight in weights])
    whole: Any = type(parts[0])(rows.size(1), len(rows))
    quantised = torch.quantize_per_channel(rows, scales, zeros, 0, torch.qint8)
    whole.set_weight_bias(quantised, torch.cat([part.bias() for part in parts]))
    return whole
