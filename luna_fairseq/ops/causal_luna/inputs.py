"""Pack weights, position counts and decoding state of causal Luna attention, for all implementations.

Shapes: batch size B, H heads of width K, T positions, L rows of the packed sequence P, model width C.
"""

import math
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.ops.absorbed import HeadProjection, absorbed_logits, can_absorb, should_absorb
from luna_fairseq.ops.forms import Form, FormTable, otherwise

# Number of rows of P that a Triton kernel processes at a time. The constant is defined here to avoid an
# import cycle between triton.py and triton_kernels.py.
BLOCK_L = 16
# What to do about implementations without second derivatives
DERIVE_TWICE = 'Use backend="parallel" or "naive" (--luna-backend), without a decoding state'
# Up to this number of positions (the hypotheses of a sentence in decoding), copying heads takes less time
# than the calls that avoid the copy.
FEW_POSITIONS = 8


class CausalLunaState(NamedTuple):
    """Decoding state of causal Luna attention: sums over all positions so far, and the number of positions.

    The key sum has one weighted sum of keys per row of the packed sequence P, and the value sum one weighted
    sum of values. These two sums replace a cache that would grow with every token. Position j has the key
    k_j, the value v_j and the pack weights a_j, one weight per row of P. The sums are those of equation 7 of
    the Luna paper, without the factor 1/t. Shapes: batch size B, H heads, head width K, and L rows of P.

    Attributes:
        key_sum: sum of the outer products k_j^T a_j over positions j, [B, H, K, L], in float32 or float64.
        value_sum: sum of the outer products a_j^T v_j over positions j, [B, H, L, K], in float32 or float64.
            If keys and values are the same tensor (tied), ``key_sum`` transposed is used, and this is None.
        steps: number of positions so far, [B], excluding padding. The dtype is int64, because a count in half
            precision would stop at 2,048. None in a decoder, which stores this number once for all layers in
            ``DecoderState.count``.
    """

    key_sum: Tensor
    value_sum: Optional[Tensor] = None
    steps: Optional[Tensor] = None

    def values(self) -> Tensor:
        """Return the value sum [B, H, L, K], which is the transposed key sum in tied attention."""
        return self.key_sum.transpose(-2, -1) if self.value_sum is None else self.value_sum


class TokenCounts(NamedTuple):
    """Number t of positions so far, excluding padding, and its reciprocal, computed once for all layers.

    Attributes:
        earlier: number of positions in earlier calls, [B], int64.
        steps: number t of positions, including those of this call, [B], int64.
        divisor: t [B, 1, 1, 1] in the dtype of the sums; 1 if t is 0.
        mean: factor 1/t [B, 1, 1, 1] of equation 7 of the Luna paper.
    """

    earlier: Tensor
    steps: Tensor
    divisor: Tensor
    mean: Tensor

    @classmethod
    def compute(
        cls, earlier: Tensor, length: int, padding_mask: Optional[Tensor], dtype: torch.dtype
    ) -> "TokenCounts":
        """Return the token counts of B sequences after ``length`` more positions.

        ``earlier`` [B] is the number of earlier tokens. Positions where ``padding_mask`` [B, length] is True
        are not counted. ``dtype`` is the dtype of the keys. In half precision, t and 1/t are in float32.
        """
        steps = earlier + (length if padding_mask is None else (~padding_mask).sum(dim=1))
        dtype = torch.promote_types(dtype, torch.float32)
        divisor = steps.clamp(min=1).to(dtype).view(-1, 1, 1, 1)
        return cls(earlier, steps, divisor, divisor.reciprocal())


def softplus(x: Tensor) -> Tensor:
    """Compute the softplus with base 2, log2(1 + 2^x), which equals 1 at 0."""
    return F.softplus(x, beta=math.log(2.0))


def elu(x: Tensor) -> Tensor:
    """Compute ELU(x) + 1, a positive activation that equals 1 at 0."""
    return F.elu(x) + 1.0


PACK_ACTIVATIONS = {"softplus": softplus, "elu": elu}


def causal_pack_weights(pack_q: Tensor, pack_k: Tensor, activation: str) -> Tensor:
    """Compute the pack weights omega(pack_k pack_q^T / sqrt(K)) of causal Luna attention (Luna, section 3.3).

    ``pack_q`` [B, H, L, K] is the unscaled projection of P. ``pack_k`` [B * n, H, T, K] is the projected
    input. The n adjacent hypotheses of a sentence share one P. ``activation`` selects the function omega,
    "softplus" or "elu".

    Returns:
        The weights [B * n, H, T, L] in float32 (float64 for float64 inputs), because they are summed over
        positions.

    Example:
        >>> import torch
        >>> causal_pack_weights(torch.randn(2, 8, 16, 64), torch.randn(2, 8, 100, 64), "softplus").shape
        torch.Size([2, 8, 100, 16])
    """
    if activation not in PACK_ACTIVATIONS:
        choices = ", ".join(PACK_ACTIVATIONS)
        raise ValueError(f"Expected one of {choices} as pack activation, got {activation!r}.")
    (B, _, L, _), (N, H, T, K) = pack_q.shape, pack_k.shape
    rows = (pack_q * K**-0.5).transpose(-2, -1)
    if N != B:
        # One product with P for all hypotheses of a sentence.
        pack_k = pack_k if T == 1 else pack_k.transpose(1, 2)  # fewer calls in a decoding step
        pack_k = pack_k.reshape(B, -1, H, K).transpose(1, 2)  # [B, H, n T, K]
    if pack_k.size(2) <= FEW_POSITIONS:
        logits = pack_k @ rows
    else:
        # Flattened over B and H, the heads of a projection are a view; matmul would copy them.
        logits = torch.bmm(pack_k.flatten(0, 1), rows.flatten(0, 1)).unflatten(0, pack_k.shape[:2])
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    weights = PACK_ACTIVATIONS[activation](logits)
    if N != B:
        weights = weights.transpose(1, 2)  # [B, n T, H, L]
        weights = weights.reshape(N, H, 1, L) if T == 1 else weights.reshape(N, T, H, L).transpose(1, 2)
    return weights


def absorbed_pack_weights(pack_q: Tensor, x: Tensor, key: HeadProjection, activation: str) -> Tensor:
    """Compute the pack weights [B, H, T, L] without projecting the input x [T, B, C] to keys.

    ``pack_q`` [B, H, L, K] is the projected P, ``key`` the key projection, ``activation`` a pack activation.
    """
    return PACK_ACTIVATIONS[activation](absorbed_logits(pack_q, x, key).transpose(2, 3).contiguous())


def _should_absorb_keys(pack_q: Tensor, x: Tensor, key_projection: nn.Module) -> bool:
    # One P for each example: hypotheses that share a P are decoded step by step.
    return pack_q.size(0) == x.size(1) and should_absorb(pack_q, x, [key_projection], products=1)


def _can_absorb_keys(pack_q: Tensor, x: Tensor, key_projection: nn.Module) -> bool:
    return pack_q.size(0) == x.size(1) and can_absorb([key_projection])


PACK_WEIGHT_FORMS = FormTable(
    "pack weights of causal attention",
    Form(
        "absorbed",
        "should_absorb: a CPU, no graph, long targets, plain linear layers",
        "the projection of the keys, one of three or four of X",
        _should_absorb_keys,
        _can_absorb_keys,
    ),
    Form("projected", "otherwise", "keys are projected first", otherwise),
)


def mask_padding(pack_weights: Tensor, key_padding_mask: Optional[Tensor]) -> Tensor:
    """Set the pack weights [B, H, T, L] to zero where ``key_padding_mask`` [B, T] is True."""
    if key_padding_mask is None:
        return pack_weights
    return pack_weights.masked_fill(key_padding_mask[:, None, :, None], 0.0)


def count_positions(q: Tensor, key_padding_mask: Optional[Tensor]) -> Tensor:
    """Return the number of positions up to and including each position of q [B, H, T, K], without padding.

    ``key_padding_mask`` [B, T] is True at padding. The counts are integers [B or 1, 1, T, 1], 0 before the
    first token.
    """
    if key_padding_mask is None:
        count = torch.arange(1, q.size(-2) + 1, device=q.device)[None, :]
    else:
        count = (~key_padding_mask).cumsum(dim=1)
    return count[:, None, :, None]


def count_steps(q: Tensor, key_padding_mask: Optional[Tensor]) -> Tensor:
    """Return the divisor t [B or 1, 1, T, 1] of equation 7 of the Luna paper for each position.

    This is the result of :func:`count_positions`, but at least 1.
    """
    return count_positions(q, key_padding_mask).clamp(min=1)
