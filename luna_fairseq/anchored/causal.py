"""Luna causal attention with exponential decay, in which distant tokens have smaller weights."""

from typing import Any

import torch
from torch import Tensor

from luna_fairseq.anchored.strengths import LearnedStrength, alibi_slopes
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention


class DecayingCausalAttention(LunaCausalAttention):
    """Luna causal attention that multiplies the weight of a token n positions earlier by ``exp(-n d)``.

    Each head learns its decay rate d. The initial rates are the slopes of ALiBi (Press et al., 2022), so that
    some heads attend to the last few tokens and others to hundreds of tokens.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.decay = LearnedStrength(alibi_slopes(self.num_heads))

    def log_decay(self) -> Tensor:
        """Return the log decay per position -d [H], a learned negative number for each head."""
        rate = self.decay()
        # Softplus underflows to 0 in float16, and means over positions divide by expm1 of the log decay.
        return -rate.clamp(min=torch.finfo(rate.dtype).tiny)
