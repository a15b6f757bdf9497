"""Linear layers with 8-bit weights, for decoding on a CPU.

torch's dynamically quantised linear layer scales its whole input by a single factor, so the scores of a
sentence depend on the other sentences in the batch. :class:`Linear8` uses a separate factor per position.
"""

import copy
import warnings
from functools import lru_cache
from typing import Any, Callable, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.models.onednn_linear import OneDnnLinear
from luna_fairseq.modules.fused_projections import FusedProjections
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention
from luna_fairseq.ops.plain_linear import is_plain_linear

# Inputs are divided by their largest magnitude, so that the 8-bit levels 0 to 255 represent -1 to 1.
STEP, ZERO = 2 / 255, 128


def quantise(model: nn.Module) -> None:
    """Replace every linear layer of a float32 model with a :class:`Linear8`, including the output projection.

    Embeddings, layer norms, and linear layers with hooks stay in float32. The model cannot be trained.

    Raises:
        InputError: The model is on a GPU or in half precision, or torch does not support 8-bit matrix
            products on this CPU.
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
        linears = {name: child for name, child in module.named_children() if _is_replaced(child)}
        fused = None
        if isinstance(module, LunaCausalAttention):
            layers = module.input_projections()
            if all(_is_replaced(layer) and layer.bias is not None for layer in layers):
                weights, biases = ([getattr(x, name) for x in layers] for name in ("weight", "bias"))
                fused = Linear8(torch.cat(weights), torch.cat(biases))
        for name, child in linears.items():
            setattr(module, name, Linear8(child.weight, child.bias))
        if isinstance(module, LunaCausalAttention):
            module.fused_x_proj = fused and FusedLinear8(module.input_projections(), fused)


def _is_replaced(layer: nn.Module) -> bool:
    return type(layer) in (nn.Linear, OneDnnLinear) and is_plain_linear(layer)


class Linear8(nn.Module):
    """Linear layer that multiplies 8-bit weights by 8-bit inputs.

    Weights are scaled per output, and inputs per position. The output at a position therefore does not depend
    on other positions or sentences.

    Args:
        weight: float32 matrix [outputs, inputs].
        bias: float32 vector [outputs]; None if the layer has no bias.

    Example:
        >>> layer = Linear8(torch.eye(8), bias=None)
        >>> layer(torch.ones(1, 3, 8)).shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, weight: Tensor, bias: Optional[Tensor]):
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack(
            quantise_matrix(weight.detach(), 8 if has_exact_8_bit_sums() else 7), None
        )
        self.bias = None if bias is None else bias.detach().clone()
        self.multiply = choose_product()
        self.unpacked: Optional[Tuple[Tensor, Tensor]] = None

    def select(self, outputs: Tensor) -> "Linear8":
        """Return a layer that computes only a subset of the outputs.

        The first call unpacks the weights and caches them in 8 bits.

        Args:
            outputs: indices of the outputs to compute, [number of selected outputs].

        Returns:
            Layer with the selected outputs, in the order of ``outputs``.
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

    def unpack(self) -> Tuple[Tensor, Tensor]:
        """Unpack the quantised weights, and cache the result.

        Returns:
            Integer weights [outputs, inputs] from -128 to 127, and the scales [outputs].
        """
        if self.unpacked is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch deprecates quantised tensors
                weight, _ = torch.ops.quantized.linear_unpack(self.packed)
                self.unpacked = weight.int_repr(), weight.q_per_channel_scales()
        return self.unpacked

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer.

        Args:
            x: float32 vectors [..., inputs].

        Returns:
            Float32 vectors [..., outputs].
        """
        # The lower bound avoids division by zero at positions where all inputs are zero.
        scale = x.abs().amax(-1, True).clamp_min_(1.2e-38)
        products = self.multiply(x / scale, STEP, ZERO, self.packed)
        return products.mul_(scale) if self.bias is None else torch.addcmul(self.bias, products, scale)


class FusedLinear8(FusedProjections):
    """Several 8-bit layers with the same input as one product. The outputs are equal bit for bit."""

    def __init__(self, layers: Sequence[nn.Module], product: Linear8):
        super().__init__(layers)
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        """Return the concatenated outputs of all layers for vectors [..., inputs]."""
        return self.product(x)


@lru_cache(maxsize=None)
def choose_product() -> Callable[..., Tensor]:
    """Return the fastest available function for multiplying float32 inputs by 8-bit weights.

    torch 2.3 and newer provide such a function for x86 CPUs. Otherwise, :func:`multiply_at_fixed_scale` is
    returned, which takes the same arguments.

    Returns:
        Function ``(x, step, zero, packed) -> products``.
    """
    packed = torch.ops.quantized.linear_prepack(quantise_matrix(torch.ones(1, 8)), None)
    try:
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
        product(torch.ones(1, 8), STEP, ZERO, packed)
    except (AttributeError, RuntimeError):  # a different torch version; a different kind of CPU
        return multiply_at_fixed_scale
    return product


def multiply_at_fixed_scale(x: Tensor, step: float, zero: int, packed: Any) -> Tensor:
    """Round inputs between -1 and 1 to 8 bits, and multiply them by 8-bit weights.

    torch's dynamic quantised product derives the rounding step from the smallest and largest inputs. This
    function appends a vector containing -1 and 1, so the step is the same in every call.

    Args:
        x: float32 vectors [..., inputs] with values from -1 to 1.
        step: rounding step; must be :data:`STEP`.
        zero: 8-bit level that represents 0; must be :data:`ZERO`.
        packed: weights packed by ``torch.ops.quantized.linear_prepack``.

    Returns:
        Float32 products [..., outputs].
    """
    edges = x.new_zeros(1, x.size(-1))
    edges[0, 0], edges[0, -1] = -1.0, 1.0
    vectors = torch.cat([x.reshape(-1, x.size(-1)), edges])
    products = torch.ops.quantized.linear_dynamic(vectors, packed, reduce_range=False)[:-1]
    return products.view(*x.shape[:-1], products.size(-1))


def quantise_matrix(weight: Tensor, bits: int = 8) -> Tensor:
    """Quantise a matrix to integers, with a separate scale per row.

    Args:
        weight: float32 matrix [rows, columns].
        bits: number of bits per integer, at most 8 (default: 8).

    Returns:
        Quantised matrix [rows, columns], with dtype ``torch.qint8``.
    """
    scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(weight.dtype).eps) / (2 ** (bits - 1) - 0.5)
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates quantised tensors
        return torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)


@lru_cache(maxsize=None)
def has_exact_8_bit_sums() -> bool:
    """Return True if this CPU sums products of 8-bit numbers without overflow. CPUs with VNNI do.

    Other CPUs add pairs of products in 16 bits, where large products overflow. Using 7-bit weights prevents
    the overflow.
    """
    ones = torch.ones(1, 64)
    packed = torch.ops.quantized.linear_prepack(quantise_matrix(ones), None)
    return bool(torch.ops.quantized.linear_dynamic(ones, packed, reduce_range=False) > 63)
