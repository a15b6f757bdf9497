"""Weights in 8 bits for decoding on a CPU, by torch's dynamic quantisation."""

from typing import Any, Sequence

import torch
from torch import nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention


def quantise(model: nn.Module) -> None:
    """Keep the weights of linear maps, the output's among them, in 8 bits, one scale a matrix; what they are
    multiplied with is rounded call by call. Embeddings, norms and P stay as they are.

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
    quantization: Any = getattr(torch, "ao", torch).quantization
    quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8, inplace=True)
    for module in model.modules():
        if isinstance(module, LunaCausalAttention):
            module.in_one = side_by_side([getattr(module, f"{name}_proj") for name in module.read_of_x])


def side_by_side(parts: Sequence[Any]) -> nn.Module:
    """One map to the outputs of the quantised linear maps ``parts``, each with its scale: the same numbers in
    one call."""
    weights = [part.weight() for part in parts]
    scales, zeros = (
        torch.cat([torch.full((len(weight),), of(weight), dtype=dtype) for weight in weights])
        for of, dtype in ((torch.Tensor.q_scale, torch.double), (torch.Tensor.q_zero_point, torch.long))
    )
    rows = torch.cat([weight.dequantize() for weight in weights])
    whole: Any = type(parts[0])(rows.size(1), len(rows))
    quantised = torch.quantize_per_channel(rows, scales, zeros, 0, torch.qint8)
    whole.set_weight_bias(quantised, torch.cat([part.bias() for part in parts]))
    return whole
