"""Luna causal attention with exponential decay, in which distant positions have smaller weights."""

from typing import Any

from torch import Tensor

from luna_fairseq.anchored.strengths import LearnedStrength, alibi_slopes
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention


class DecayingCausalAttention(LunaCausalAttention):
    """Luna causal attention with a learned exponential decay for each head.

    The initial decay rates are ALiBi's slopes.

    Args:
        *args: positional arguments of :class:`LunaCausalAttention`.
        **kwargs: keyword arguments of :class:`LunaCausalAttention`.

    Example:
        >>> import torch
        >>> attention = DecayingCausalAttention(embed_dim=64, num_heads=8)
        >>> attention(torch.randn(20, 4, 64), torch.randn(16, 4, 64)).shape
        torch.Size([20, 4, 64])
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.decay = LearnedStrength(alibi_slopes(self.num_heads))

    def log_decay(self) -> Tensor:
        """Return the learned logarithm of the decay over one position for each head [H]."""
        return -self.decay()
