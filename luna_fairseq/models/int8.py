"""Linear layers with 8-bit weights, for decoding on a CPU.

PyTorch's dynamically quantized linear layer scales its whole input by a single factor, so the scores of a
sentence depend on the other sentences in the batch. :class:`Linear8` uses a separate factor per position.
"""

import copy
import warnings
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Iterator, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.models.replaced_linears import replace_linears
from luna_fairseq.ops.forms import Form, FormTable, otherwise

# Inputs are divided by their largest magnitude. The 8-bit levels 0 to 255 then represent -1.004 to 0.996.
STEP, ZERO = 2 / 255, 128


@contextmanager
def without_warnings() -> Iterator[None]:
    """Context manager that hides torch's warning that quantized tensors are deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def quantise(model: nn.Module) -> None:
    """Replace plain linear layers of a float32 model, such as the output projection, with :class:`Linear8`.

    Layers with hooks, subclasses of ``nn.Linear``, embeddings and layer norms stay in float32. Load
    checkpoints first: the quantized model cannot be trained, and its state dict lacks the replaced weights.

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
    replace_linears(model, Linear8)


class OneDnnWeight:
    """8-bit weight of a linear layer in the memory layout of oneDNN, with one scale per output feature."""

    def __init__(self, quantised: Tensor):
        self.packed = torch.ops.onednn.qlinear_prepack(quantised.int_repr(), None)
        self.scales = quantised.q_per_channel_scales().float()
        self.zeros = torch.zeros(len(self.scales), dtype=torch.long)

    def multiply(self, x: Tensor) -> Tensor:
        """Multiply x [..., in_features] in [-1, 1] by the weight. Return [..., out_features] in float32."""
        vectors = x.reshape(-1, x.size(-1))
        levels = torch.quantize_per_tensor(vectors, STEP, ZERO, torch.quint8).int_repr()
        products = torch.ops.onednn.qlinear_pointwise(
            *(levels, STEP, ZERO, self.packed, self.scales, self.zeros, None),
            *(1.0, 0, torch.float32, "none", [], ""),  # float32 products, and nothing after them
        )
        return products.view(*x.shape[:-1], products.size(-1))


@lru_cache(maxsize=None)
def has_onednn_product() -> bool:
    """Return True if this torch can multiply 8-bit matrices with oneDNN (torch 2.2 or newer)."""
    try:
        with without_warnings():
            OneDnnWeight(quantise_matrix(torch.ones(2, 8))).multiply(torch.ones(1, 8))
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True


@lru_cache(maxsize=None)
def has_amx() -> bool:
    """Return True if this CPU has AMX instructions, which multiply 8-bit matrices."""
    predicate = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return predicate is not None and bool(predicate())


@lru_cache(maxsize=None)
def has_fbgemm_product() -> bool:
    """Return True if torch can multiply 8-bit matrices at a given input scale (x86, torch 2.3 or newer)."""
    packed = torch.ops.quantized.linear_prepack(quantise_matrix(torch.ones(1, 8)), None)
    try:
        torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            torch.ones(1, 8), STEP, ZERO, packed
        )
    except (AttributeError, RuntimeError):
        return False
    return True


# Number of vectors from which oneDNN's product is faster on a CPU with AMX: 80 vectors times 512 x 32,000
# took 3.9 ms in place of 15.2 ms, and 5 vectors times 512 x 512 took 75 us in place of 41 us (Xeon, torch
# 2.13).
ONEDNN_VECTORS = 16
# Number of inputs from which oneDNN multiplies with AMX, with results that equal FBGEMM's bit for bit. With
# fewer inputs it rounds in another order.
ONEDNN_INPUTS = 64
# All forms round to the same levels with the same scales. Sums are exact, so results differ by the rounding
# of float32 alone. AMX is checked when a layer is built. CPUs without AMX have not been measured.
LINEAR8_FORMS = FormTable(
    "product in 8 bits",
    Form(
        "onednn",
        "AMX when the layer was built, at least 16 vectors, and at least 64 inputs",
        "saves three quarters of the time for 80 vectors times 512 x 32,000",
        lambda x, layer: (
            layer.onednn is not None
            and x.size(-1) >= ONEDNN_INPUTS
            and x.numel() >= ONEDNN_VECTORS * x.size(-1)
        ),
        lambda x, layer: layer.onednn is not None,
    ),
    Form(
        "fbgemm",
        "otherwise, with torch 2.3 or newer on an x86 CPU",
        "calls: the inputs are rounded within the product",
        lambda x, layer: has_fbgemm_product(),
        lambda x, layer: has_fbgemm_product(),
    ),
    Form("dynamic", "otherwise", "nothing: it works with every torch", otherwise),
)


class Linear8(nn.Module):
    """Linear layer that multiplies 8-bit weights by 8-bit inputs.

    Weights are scaled by the largest absolute weight of each output feature, and inputs by the largest
    absolute input at each position. The output therefore does not depend on other positions or sentences.

    Args:
        weight: float32 matrix [out_features, in_features].
        bias: float32 vector [out_features]. None for a layer without bias.

    Example:
        >>> layer = Linear8(torch.eye(8), bias=None)
        >>> layer(torch.ones(1, 3, 8)).shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, weight: Tensor, bias: Optional[Tensor]):
        super().__init__()
        self.pack(quantise_matrix(weight.detach(), 8 if has_exact_8_bit_sums() else 7))
        self.bias = None if bias is None else bias.detach().clone()

    def pack(self, quantised: Tensor) -> None:
        """Store a quantized weight [out_features, in_features] in every memory layout that this CPU uses."""
        self.packed = torch.ops.quantized.linear_prepack(quantised, None)
        self.unpacked: Optional[Tuple[Tensor, Tensor]] = None
        uses_onednn = has_amx() or LINEAR8_FORMS.forced() == "onednn"
        self.onednn = OneDnnWeight(quantised) if uses_onednn and has_onednn_product() else None

    def select(self, outputs: Tensor) -> "Linear8":
        """Return a layer that computes only the output features at the N indices ``outputs`` [N].

        The unpacked weights are cached for later calls.
        """
        with without_warnings():
            levels, scales = (x.index_select(0, outputs) for x in self.unpack())
            zeros = torch.zeros(len(outputs), dtype=torch.long)
            weight = torch._make_per_channel_quantized_tensor(levels, scales, zeros, 0)
        selected = copy.copy(self)
        selected.pack(weight)
        selected.bias = None if self.bias is None else self.bias.index_select(0, outputs)
        return selected

    def unpack(self) -> Tuple[Tensor, Tensor]:
        """Return the integer weight [out_features, in_features] and scales [out_features], and cache both."""
        if self.unpacked is None:
            with without_warnings():
                weight, _ = torch.ops.quantized.linear_unpack(self.packed)
                self.unpacked = weight.int_repr(), weight.q_per_channel_scales()
        return self.unpacked

    def forward(self, x: Tensor) -> Tensor:
        """Map float32 vectors [..., in_features] to [..., out_features]."""
        # The lower bound avoids division by zero at positions where all inputs are zero.
        scale = x.abs().amax(-1, True).clamp_min_(1.2e-38)
        products = self.multiply(x / scale)
        return products.mul_(scale) if self.bias is None else torch.addcmul(self.bias, products, scale)

    def multiply(self, x: Tensor) -> Tensor:
        """Quantize x [..., in_features] in [-1, 1], and apply the weight. Return [..., out_features]."""
        form = LINEAR8_FORMS.choose(x, self)
        if form == "onednn":
            onednn: Any = self.onednn
            return onednn.multiply(x)
        if form == "fbgemm":
            return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default(
                x, STEP, ZERO, self.packed
            )
        return multiply_at_fixed_scale(x, self.packed)

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Raise InputError if the model is moved to a GPU or converted, for example by ``half()``."""
        converted = fn(torch.ones(1))
        if converted.device.type != "cpu" or converted.dtype != torch.float32:
            raise InputError(
                f"int8 needs a float32 model on a CPU, got {str(converted.dtype)[6:]} on {converted.device}: "
                "remove int8, or leave the model as it was loaded"
            )
        return super()._apply(fn, *args, **kwargs)

    def __getstate__(self) -> Any:
        # oneDNN's tensors can be neither pickled nor copied. A copied or unpickled layer uses another form.
        return {**self.__dict__, "onednn": None}


def multiply_at_fixed_scale(x: Tensor, packed: Any) -> Tensor:
    """Quantize x [..., in_features] in [-1, 1] with a fixed scale, and multiply by packed 8-bit weights.

    PyTorch's dynamically quantized linear operator derives the scale from the smallest and largest input. A
    vector with -1 and 1, appended to x, keeps the scale fixed. Return [..., out_features].
    """
    edges = x.new_zeros(1, x.size(-1))
    edges[0, 0], edges[0, -1] = -1.0, 1.0
    vectors = torch.cat([x.reshape(-1, x.size(-1)), edges])
    products = torch.ops.quantized.linear_dynamic(vectors, packed, reduce_range=False)[:-1]
    return products.view(*x.shape[:-1], products.size(-1))


def quantise_matrix(weight: Tensor, bits: int = 8) -> Tensor:
    """Quantize a float32 matrix [rows, columns] to ``qint8`` with 7 or 8 ``bits`` and one scale per row."""
    # With 7 bits, the largest weight is rounded to 63 or 64. Two products with 255 then fit into 16 bits.
    scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(weight.dtype).eps) / (2 ** (bits - 1) - 0.5)
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with without_warnings():
        return torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)


@lru_cache(maxsize=None)
def has_exact_8_bit_sums() -> bool:
    """Return True if this CPU sums products of 8-bit numbers without overflow, for example with VNNI.

    Other CPUs add pairs of products in 16 bits, which may overflow unless the weights have 7 bits.
    """
    ones = torch.ones(1, 64)
    packed = torch.ops.quantized.linear_prepack(quantise_matrix(ones), None)
    return bool(torch.ops.quantized.linear_dynamic(ones, packed, reduce_range=False) > 63)
