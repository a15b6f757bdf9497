"""Linear layers with 8-bit weights for decoding on a CPU.

The dynamically quantised linear layer of torch rounds its whole input with one scale. The scores of a
sentence then depend on the other sentences of its batch. :class:`Linear8` instead has a scale for each
position.
"""

import copy
import warnings
from functools import lru_cache
from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention

# Inputs are divided by their largest magnitude, so that the 8-bit levels 0 to 255 represent -1 to 1.
STEP, ZERO = 2 / 255, 128


def quantise(model: nn.Module) -> None:
    """Replace every linear layer of a model, including the output projection, by a :class:`Linear8`.

    Embeddings, norms and the packed sequence P stay in float32.

    Args:
        model: float32 model on the CPU, changed in place; the result cannot be trained.

    Raises:
        InputError: The model is on a GPU or in half precision, or torch has no 8-bit products for this CPU.
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

    Each output of the layer and each position of the input has a scale of its own. The output at a position
    therefore does not depend on other positions or sentences.

    Args:
        weight: float32 matrix [outputs, inputs].
        bias: float32 vector [outputs]; None for a layer without bias.

    Example:
        >>> layer = Linear8(torch.eye(8), bias=None)
        >>> layer(torch.ones(1, 3, 8)).shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, weight: Tensor, bias: Optional[Tensor]):
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack(
            in_8_bits(weight.detach(), 8 if sums_hold_8_bits() else 7), None
        )
        self.bias = None if bias is None else bias.detach().clone()
        self.multiply = find_product()
        self.unpacked: Optional[Tuple[Tensor, Tensor]] = None

    def select(self, outputs: Tensor) -> "Linear8":
        """Return a layer that computes some of the outputs.

        The first call keeps a second copy of the weights, from which rows can be selected.

        Args:
            outputs: indices [K] of the outputs.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch deprecates quantised tensors
            levels, scales = (x.index_select(0, outputs) for x in self.unpack())
            zeros = torch.zeros(len(outputs), dtype=torch.long)
            weight = torch._make_per_channel_quantized_tensor(levels, scales, zeros, 0)
        selected = copy.copy(self)
        selected.packed = torch.ops.quantized.linear_prepack(weight, None)
        selected.bias = None if self.bias is None else self.bias.index_select(0, outputs)
        selected.unpacked = None
        return selected

    def linear_parameters(self) -> Tuple[Tensor, Optional[Tensor]]:
        """Return the weight in float32 and the bias, for a memory that absorbs them.

        The first call keeps a second copy of the weights in 8 bits, because unpacking takes longer than
        everything else that a memory needs.
        """
        levels, scales = self.unpack()
        return levels.float() * scales.float()[:, None], self.bias

    def unpack(self) -> Tuple[Tensor, Tensor]:
        """Return the weights as integers [outputs, inputs] and the scale of each output, and keep both."""
        if self.unpacked is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch deprecates quantised tensors
                weight, _ = torch.ops.quantized.linear_unpack(self.packed)
                self.unpacked = weight.int_repr(), weight.q_per_channel_scales()
        return self.unpacked

    def forward(self, x: Tensor) -> Tensor:
        """Project vectors with 8-bit weights.

        Args:
            x: vectors [.., inputs].

        Returns:
            Vectors [.., outputs].
        """
        # The minimum avoids a division by zero at positions where all inputs are zero.
        scale = x.abs().amax(-1, True).clamp_min_(1.2e-38)
        products = self.multiply(x / scale, STEP, ZERO, self.packed)
        return products.mul_(scale) if self.bias is None else torch.addcmul(self.bias, products, scale)


@lru_cache(maxsize=None)
def find_product() -> Callable[..., Tensor]:
    """Return a function that rounds float32 inputs with a given scale, and multiplies by 8-bit weights.

    Torch 2.3 and newer have such a function for x86 CPUs. Elsewhere, :func:`multiply_with_edges` is returned,
    which describes the arguments.
    """
    packed = torch.ops.quantized.linear_prepack(in_8_bits(torch.ones(1, 8)), None)
    try:
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
        product(torch.ones(1, 8), STEP, ZERO, packed)
    except (AttributeError, RuntimeError):  # another version of torch; another kind of CPU
        return multiply_with_edges
    return product


def multiply_with_edges(x: Tensor, step: float, zero: int, packed: Any) -> Tensor:
    """Round inputs to 8 bits, and multiply by 8-bit weights.

    torch's dynamic product derives its scale from the smallest and the largest input. This function appends a
    vector that contains -1 and 1, so that the scale is the same in every call.

    Args:
        x: inputs [.., inputs] with values from -1 to 1.
        step: size of a rounding step, which must be :data:`STEP`.
        zero: 8-bit level of the input 0, which must be :data:`ZERO`.
        packed: weights packed by ``torch.ops.quantized.linear_prepack``.

    Returns:
        Products [.., outputs] in float32.
    """
    edges = x.new_zeros(1, x.size(-1))
    edges[0, 0], edges[0, -1] = -1.0, 1.0
    vectors = torch.cat([x.reshape(-1, x.size(-1)), edges])
    products = torch.ops.quantized.linear_dynamic(vectors, packed, reduce_range=False)[:-1]
    return products.view(*x.shape[:-1], products.size(-1))


def in_8_bits(weight: Tensor, bits: int = 8) -> Tensor:
    """Quantise a matrix to integers, with a scale for each row of the matrix.

    Args:
        weight: float32 matrix [M, N].
        bits: number of bits of the integers, at most 8 (default: 8).

    Returns:
        Quantised matrix [M, N].
    """
    scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(weight.dtype).eps) / (2 ** (bits - 1) - 0.5)
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates quantised tensors
        return torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)


@lru_cache(maxsize=None)
def sums_hold_8_bits() -> bool:
    """Return True if this CPU adds products of 8-bit numbers without overflow, as CPUs with VNNI do.

    Other CPUs add pairs of products in 16 bits, which overflow for large numbers. They need weights of 7
    bits.
    """
    ones = torch.ones(1, 64)
    packed = torch.ops.quantized.linear_prepack(in_8_bits(ones), None)
    return bool(torch.ops.quantized.linear_dynamic(ones, packed, reduce_range=False) > 63)
