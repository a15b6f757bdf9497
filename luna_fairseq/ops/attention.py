"""Softmax attention for the pack and unpack steps of Luna (equations 3 and 4 of the paper).

Luna attends through the packed sequence P, a short additional sequence. In the pack step the queries come
from P, and the keys and values from the context. In the unpack step the queries come from the input X, and
the keys and values from the result of the pack step. Shapes: batch size B, H heads of width K, T queries, S
keys.
"""

from contextlib import nullcontext
from typing import Any, ContextManager, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.forms import Form, FormTable, never, otherwise

FEW_KEYS = 32
FEW_KEYS_WITH_BIAS = 64  # or so few queries
FEW_KEYS_IN_HALF = 128  # in half precision, in training
FEW_WEIGHTS = 32768  # so few attention weights are computed fastest in one call
FEW_LOGITS = 2048  # so few logits take no time
# Before torch 2.5, scaled_dot_product_attention returned NaN for a query whose keys are all masked. Before
# torch 2.0 it did not exist.
_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
_FUSED = _TORCH >= (2, 5)

# Numbers in a vector register of this CPU, in float32, or 0 with a torch that does not name its instructions
# (before 2.1). torch's softmax is slow for shorter rows.
_INSTRUCTIONS = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", str)()
_VECTOR = {"AVX512": 16, "AVX2": 8}.get(_INSTRUCTIONS, 0)

# Largest penalty for distance that a bias subtracts from a logit. A weight of e^-50 is negligible even in
# float64. Without a limit, the weights of distant keys would be denormal numbers, which slow down a CPU many
# times.
MAX_PENALTY = 50.0


def naive_softmax_weights(
    q: Tensor, k: Tensor, mask: Optional[Tensor] = None, bias: Optional[Tensor] = None
) -> Tensor:
    """Compute the attention weights softmax(q k^T / sqrt(K) + bias) in float32 or float64.

    The queries q are [..., T, K], the keys k [..., S, K], and the result [..., T, S]. mask and bias broadcast
    to the shape of the result. The mask is True at masked keys. A query whose keys are all masked has weights
    of zero.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    with disable_autocast(q.device):
        logits = (q.to(dtype) * q.size(-1) ** -0.5) @ k.to(dtype).transpose(-2, -1)
        return masked_softmax(logits if bias is None else logits + bias, mask)


def masked_softmax(logits: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Compute the softmax over the last dimension, with zero weight where the mask is True.

    ``mask`` broadcasts to the logits. The weights sum to one, or are all zero if every key is masked.

    Example:
        >>> import torch
        >>> masked_softmax(torch.zeros(3), torch.tensor([False, False, True]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    if mask is None:
        return fast_softmax(logits)
    # The most negative finite value, unlike -inf, avoids NaN gradients if every key is masked.
    weights = fast_softmax(logits.masked_fill(mask, torch.finfo(logits.dtype).min))
    return weights.masked_fill(mask, 0.0)


def fast_softmax(logits: Tensor) -> Tensor:
    """Compute the softmax over the last dimension, quickly even if this dimension is short.

    On a CPU, torch takes up to 15 times as long for rows that do not fill a vector register. Such rows are
    extended by logits of minus infinity (float32), or computed in float32 (half precision).
    """
    # Shapes are compared in eager mode only, because a recorded graph would be limited to one outcome.
    if logits.device.type != "cpu" or is_recording_graph():
        return logits.softmax(dim=-1)
    if logits.numel() < FEW_LOGITS or logits.size(-1) >= 2 * _VECTOR:
        return logits.softmax(dim=-1)
    if logits.dtype in (torch.bfloat16, torch.float16):
        return fast_softmax(logits.float()).to(logits.dtype)
    missing = _VECTOR - logits.size(-1)
    if missing <= 0 or logits.dtype != torch.float32:
        return logits.softmax(dim=-1)
    return F.pad(logits, (0, missing), value=float("-inf")).softmax(dim=-1)[..., :-missing]


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
    form: Optional[str] = None,
) -> Tensor:
    """Compute softmax attention, softmax(q k^T / sqrt(K) + bias) v, with the fastest implementation.

    The implementation is torch's fused attention or plain matrix products, depending on the inputs. The
    result matches the output of :func:`naive_attention` up to rounding.

    Shapes: batch size B, H heads, T queries, S keys, and head width K.

    Args:
        q: unscaled queries [B, H, T, K].
        k: keys [B, H, S, K].
        v: values [B, H, S, K].
        mask: mask that broadcasts to [B, H, T, S], True at masked keys. Queries whose keys are all masked
            yield zeros. :func:`key_mask` converts a padding mask.
        dropout: dropout probability of the attention weights. Pass 0 in evaluation mode.
        bias: bias term added to the logits. It broadcasts to [B, H, T, S].
        form: name of an implementation in ``SOFTMAX_FORMS`` (default: the fastest for these inputs).

    Returns:
        The output [B, H, T, K].

    Example:
        >>> import torch
        >>> x, later = torch.randn(2, 8, 10, 64), torch.ones(10, 10, dtype=torch.bool).triu(1)
        >>> softmax_attention(x, x, x, later).shape  # causal attention
        torch.Size([2, 8, 10, 64])
    """
    form = SOFTMAX_FORMS.choose(q, k, bias, form=form)
    if form == "matmul":
        return _attend_by_products(q, k, v, mask, dropout, bias)
    if form == "naive" or not _FUSED:
        return naive_attention(q, k, v, mask, dropout, bias)[0]
    attn_mask = None if mask is None else ~mask
    if bias is not None:
        bias = bias.to(q.dtype)
        attn_mask = bias if mask is None else bias.masked_fill(mask, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=dropout)


def _attend_by_products(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], dropout: float, bias: Optional[Tensor]
) -> Tensor:
    """Compute softmax attention by plain matrix products, with the arguments of softmax_attention."""
    # Batched products over B x H read the heads of a projection in place; matmul would copy them.
    heads, shape = q.shape[:2], (*q.shape[:3], k.size(2))
    scale = q.size(-1) ** -0.5
    q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    if bias is None:
        # The shorter one is scaled. A comparison of sizes would limit a recorded graph to one outcome.
        is_q_shorter = not is_recording_graph() and q.size(1) < k.size(1)
        q, k = (q * scale, k) if is_q_shorter else (q, k * scale)
        logits = torch.bmm(q, k.transpose(1, 2))
    else:
        bias = bias.to(q.dtype).expand(shape).flatten(0, 1)
        logits = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=scale)
    weights = masked_softmax(logits.unflatten(0, heads), mask).flatten(0, 1)
    return torch.bmm(F.dropout(weights, dropout), v).unflatten(0, heads)


def naive_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
) -> Tuple[Tensor, Tensor]:
    """Compute softmax attention without optimizations, and return the output and the attention weights.

    :func:`softmax_attention` describes the arguments. The weights [B, H, T, S] are returned before dropout.

    Example:
        >>> import torch
        >>> p, context = torch.randn(2, 8, 16, 64), torch.randn(2, 8, 1000, 64)  # 16 queries, 1,000 keys
        >>> output, weights = naive_attention(p, context, context)
        >>> weights.shape
        torch.Size([2, 8, 16, 1000])
    """
    weights = naive_softmax_weights(q, k, mask, bias)
    with disable_autocast(q.device):
        output = F.dropout(weights, dropout) @ v.to(weights.dtype)
    return output.to(q.dtype), weights.to(q.dtype)


def key_mask(padding_mask: Optional[Tensor]) -> Optional[Tensor]:
    """Return a padding mask [B, S] as a mask of the keys, [B, 1, 1, S]. None stays None."""
    return None if padding_mask is None else padding_mask[:, None, None, :]


def should_use_matmul(q: Tensor, k: Tensor, bias: Optional[Tensor] = None) -> bool:
    """Return True if plain matrix products are faster on a CPU than torch's fused attention.

    The fused kernel works on blocks of queries and of hundreds of keys. It does not support gradients through
    a bias. In half precision its backward pass is slow, and its forward pass is fast.
    """
    if q.device.type != "cpu":
        return False
    queries, keys = q.size(2), k.size(2)
    if is_recording_graph():
        return _is_known_to_be_few(keys) or (bias is not None and _is_known_to_be_few(queries))
    in_half = q.dtype not in (torch.float32, torch.float64)
    if bias is not None and bias.requires_grad and torch.is_grad_enabled():
        return min(queries, keys) <= (2 * FEW_KEYS_IN_HALF if in_half else FEW_KEYS_WITH_BIAS)
    if in_half:
        needs_gradients = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
        return needs_gradients and queries > 1 and keys <= FEW_KEYS_IN_HALF
    return keys <= min(queries, FEW_KEYS) and q.size(0) * q.size(1) * queries * keys >= FEW_WEIGHTS


def _is_known_to_be_few(size: Any) -> bool:
    # A comparison of a size that may change would limit the recorded graph to one outcome. torch.compile can
    # tell such sizes from torch 2.8 on. In torch.jit.trace, all sizes are tensors.
    if _TORCH < (2, 8) or not isinstance(size, (int, torch.SymInt)):
        return isinstance(size, int) and size <= FEW_KEYS_WITH_BIAS
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # takes half a second

    return statically_known_true(size <= FEW_KEYS_WITH_BIAS)


SOFTMAX_FORMS = FormTable(
    "softmax attention",
    Form(
        "matmul",
        "should_use_matmul: a CPU, at most 32 keys, as many queries or more, and 32,768 weights or more; "
        "in half precision, in training, at most 128 keys and several queries; if a bias needs gradients, "
        "at most 64 keys or queries (256 in half); in a graph, at most 64 keys or, with a bias, queries",
        "1.1 to 1.5 times as fast as torch's fused attention with 16 keys; up to 8 times in bfloat16, in "
        "training",
        should_use_matmul,
    ),
    Form("fused", "otherwise", "the matrix of weights, with torch 2.5 or newer", otherwise),
    Form("naive", "if forced, and if weights are wanted", "the definition", never),
)


def disable_autocast(device: torch.device) -> ContextManager[Any]:
    """Return a context manager that disables autocast on a device, if the device has autocast."""
    try:
        return torch.autocast(device.type, enabled=False)
    except RuntimeError:  # for example on the device meta
        return nullcontext()


def is_recording_graph(predicate: str = "is_compiling") -> bool:
    """Return True while torch traces, compiles or exports a graph, and False in eager mode.

    ``predicate`` is the name of the function of ``torch.compiler`` to call: "is_compiling", or "is_exporting"
    (torch 2.7) to ignore torch.compile. If torch lacks the function, only ``torch.jit.trace`` is detected.
    """
    function = getattr(getattr(torch, "compiler", None), predicate, None)
    return torch.jit.is_tracing() or (function is not None and function())


def is_eager_on_cpu(x: Tensor) -> bool:
    """Return True if x is in float32 or float64 on a CPU and torch runs eagerly."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and not is_recording_graph()
