"""Causal attention that forgets: what lies behind counts less the further."""

from typing import Any

from torch import Tensor

from luna_fairseq.anchored.strengths import LearnedStrength, alibi_slopes
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention


class DecayingCausalAttention(LunaCausalAttention):
    """Luna causal attention in which every head forgets at a rate that it learns, ALiBi's slopes initially.

    Args:
        args, kwargs: of :class:`LunaCausalAttention`
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.decay = LearnedStrength(alibi_slopes(self.num_heads))

    def log_decay(self) -> Tensor:
        """As :meth:`LunaCausalAttention.log_decay`, learned."""
        return -self.decay()
