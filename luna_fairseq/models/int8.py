"""Linear layers with 8-bit weights for decoding on a CPU.

The dynamically quantised linear layer of torch rounds its whole input with one scale, so that the scores of a
sentence depend on the rest of its batch. :class:`Linear8` uses a scale for each position of the input
instead.
"""

import warnings
from functools import lru_cache
from typing import Any, Callable, Optional

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention

# Inputs are divided by their largest magnitude. The 8-bit levels 0 to 255 then represent -1 to 1.
STEP, ZERO = 2 / 255, 128


def quantise(model: nn.Module) -> None:
    """Replace every linear layer of a model, including the output projection, by a :class:`Linear8`.

    Embeddings, norms and P stay in float32.

    Args:
        model: float32 model on the CPU, changed in place; it can no longer be trained

    Raises:
        InputError: the model is on a GPU or in half precision, or torch has no 8-bit products for this CPU
    """
    weight = next(model.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        raise InputError(
            f"int8 needs a float32 model on a CPU, got {str(weight.dtype)[6:]} on "
            f"{weight.device}: remove int8, or add --cpu and remove --fp16 and --bf16"
        )
    if not {"x86", "fbgemm", "onednn", "qnnpack"}.intersection(torch.backends.quantized.supported_engines):
        raise InputError("this torch has no 8-bit products for this CPU: remove int8")
    for module in list(model.modules()):
        if isinstance(module, LunaCausalAttention):
            parts = [getattr(module, f"{name}_proj") for name in module.x_projections]
            weight, bias = (torch.cat([getattr(x, name) for x in parts]) for name in ("weight", "bias"))
            module.fused_x_proj = Linear8(weight, bias)
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, Linear8(child.weight, child.bias))


class Linear8(nn.Module):
    """Linear layer that multiplies 8-bit weights by 8-bit inputs.

    Each row of the weight and each position of the input has a scale of its own. The output at a position
    therefore depends on the input at this position alone: not on other sentences, and not on padding.

    Args:
        weight: matrix in float32 [outputs, inputs]
        bias: vector in float32 [outputs], or None
    """

    def __init__(self, weight: Tensor, bias: Optional[Tensor]):
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack(
            in_8_bits(weight.detach(), 8 if sums_hold_8_bits() else 7), None
        )
        self.bias = None if bias is None else bias.detach().clone()
        self.multiply = find_product()

    def forward(self, x: Tensor) -> Tensor:
        """Map x [.., inputs] to [.., outputs]."""
        # A position of zeros would have the scale 0, by which the input is divided.
        scale = x.abs().amax(-1, True).clamp_min_(1.2e-38)
        products = self.multiply(x / scale, STEP, ZERO, self.packed)
        return products.mul_(scale) if self.bias is None else torch.addcmul(self.bias, products, scale)


@lru_cache(maxsize=None)
def find_product() -> Callable[..., Tensor]:
    """Return torch's product of a float32 input, which is rounded with a given scale, and 8-bit weights.

    Torch has this product since 2.3, for x86 CPUs. :func:`multiply_beside_edges` replaces it elsewhere.
    """
    packed = torch.ops.quantized.linear_prepack(in_8_bits(torch.ones(1, 8)), None)
    try:
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
        product(torch.ones(1, 8), STEP, ZERO, packed)
    except (AttributeError, RuntimeError):  # another version of torch; another kind of CPU
        return multiply_beside_edges
    return product


def multiply_beside_edges(x: Tensor, step: float, zero: int, packed: Any) -> Tensor:
    """Round x [.., inputs], with values from -1 to 1, to 8 bits and multiply by ``packed`` weights.

    This product derives its scale from the smallest and the largest input. One more row, which holds -1 and
    1, therefore gives every call the scale ``step`` and the zero point ``zero``.

    Returns:
        products in float32 [.., outputs]
    """
    edges = x.new_zeros(1, x.size(-1))
    edges[0, 0], edges[0, -1] = -1.0, 1.0
    rows = torch.cat([x.reshape(-1, x.size(-1)), edges])
    products = torch.ops.quantized.linear_dynamic(rows, packed, reduce_range=False)[:-1]
    return products.view(*x.shape[:-1], products.size(-1))


def in_8_bits(weight: Tensor, bits: int = 8) -> Tensor:
    """Quantise a matrix [M, N] to integers of ``bits`` bits, with a scale for each row."""
    scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(weight.dtype).eps) / (2 ** (bits - 1) - 0.5)
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates quantised tensors
        return torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)


@lru_cache(maxsize=None)
def sums_hold_8_bits() -> bool:
    """Return True if this CPU adds products of 8-bit numbers without overflow, as CPUs with VNNI do.

    Other CPUs add pairs of products in 16 bits. Two of the largest products overflow there, so that the
    weights may have only 7 bits.
    """
    ones = torch.ones(1, 64)
    packed = torch.ops.quantized.linear_prepack(in_8_bits(ones), None)
    return bool(torch.ops.quantized.linear_dynamic(ones, packed, reduce_range=False) > 63)
