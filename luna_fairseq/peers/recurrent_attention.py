"""Attention from a recurrent decoder to encoder states.

For decoder state s_t, the context c_t is the weighted sum of the encoder states h_i::

    c_t = sum_i alpha_ti h_i    with alpha_t = softmax_i(score(s_t, h_i))

:data:`SCORES` holds the score functions of Bahdanau et al. (2015), Luong et al. (2015, section 3.1) and
Graves et al. (2014). Local windows follow Luong et al. (section 3.2).

Shapes in this file: batch size B, T decoder states of width Q (``query``), and S encoder states of width M
(``memory``).
"""

from typing import Dict, Optional, Tuple, Type

import torch
from torch import Tensor, nn

from fairseq.models.lstm import Linear
from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import masked_softmax
from luna_fairseq.peers.attention import normalize_vectors

LOCAL = ("none", "monotonic", "predictive")


class DotScore(nn.Module):
    """Attention score ``s . h``, the dot product of decoder state s and encoder state h.

    The other scores derive from this class. Only :class:`LocationScore` uses ``longest``, the maximum source
    length.
    """

    needs_equal_widths = True

    def __init__(self, query_dim: int, memory_dim: int, longest: int):
        super().__init__()

    def compute_keys(self, memory: Tensor) -> Tensor:
        """Compute the part [B, S, width] of the score that depends only on the encoder states."""
        return memory

    def forward(self, query: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        """Compute the scores [B, T, S] of all pairs of T decoder states and S source tokens.

        ``keys`` come from :meth:`compute_keys`. ``positions`` [B, S] are token indices, not counting padding.
        """
        return query @ keys.transpose(1, 2)


class GeneralScore(DotScore):
    """Bilinear score ``s . (W h)`` of decoder states s and encoder states h, with a learned matrix W."""

    needs_equal_widths = False

    def __init__(self, query_dim: int, memory_dim: int, longest: int):
        super().__init__(query_dim, memory_dim, longest)
        self.memory_proj = Linear(memory_dim, query_dim, bias=False)

    def compute_keys(self, memory: Tensor) -> Tensor:
        return self.memory_proj(memory)


class ConcatScore(GeneralScore):
    """Additive score ``v . tanh(W [s; h])`` of decoder states s and encoder states h, with learned v and W.

    W is stored as two matrices, one for s and one for h, so that its product with h is computed once.
    """

    def __init__(self, query_dim: int, memory_dim: int, longest: int):
        super().__init__(query_dim, memory_dim, longest)
        self.query_proj = Linear(query_dim, query_dim)
        self.v = Linear(query_dim, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        return self.v(torch.tanh(self.query_proj(query)[:, :, None] + keys[:, None])).squeeze(-1)


class LocationScore(DotScore):
    """Location-based score ``(W s)_i`` for source position i and decoder state s, with a learned matrix W.

    The score depends only on the position of the source token, not on its encoder state.
    """

    needs_equal_widths = False

    def __init__(self, query_dim: int, memory_dim: int, longest: int):
        super().__init__(query_dim, memory_dim, longest)
        self.longest = longest
        self.place_proj = Linear(query_dim, longest, bias=False)

    def forward(self, query: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        if positions.size(1) > self.longest and int(positions.max()) >= self.longest:
            raise InputError(
                f"Expected at most {self.longest} source tokens for --score location, got "
                f"{int(positions.max()) + 1}. Shorten the source, or train with a larger "
                "--max-source-positions."
            )
        scores = self.place_proj(query)
        return scores.gather(2, positions.clamp(min=0)[:, None].expand(-1, query.size(1), -1))


class ContentScore(DotScore):
    """Scaled cosine similarity ``beta cos(s, h)`` of decoder states s and encoder states h of equal width.

    The factor beta is learned. Without it, the softmax of the cosines could not be sharp.
    """

    def __init__(self, query_dim: int, memory_dim: int, longest: int):
        super().__init__(query_dim, memory_dim, longest)
        self.strength = nn.Parameter(torch.ones(()))

    def compute_keys(self, memory: Tensor) -> Tensor:
        return normalize_vectors(memory)

    def forward(self, query: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        return self.strength * (normalize_vectors(query) @ keys.transpose(1, 2))


# Score classes, keyed by name.
SCORES: Dict[str, Type[DotScore]] = {
    "dot": DotScore,
    "general": GeneralScore,
    "concat": ConcatScore,
    "location": LocationScore,
    "content": ContentScore,
}


class RecurrentAttention(nn.Module):
    """Attention from decoder states to encoder states, optionally within a local window.

    ``score`` names the score function: "dot", "general", "concat", "location" or "content". ``query_dim`` and
    ``memory_dim`` are Q and M. ``longest`` is the maximum source length, which only "location" needs.

    For the decoder state s_t at position t, local attention covers the window [p_t - D, p_t + D] of the
    source, where D is ``window``. The argument ``local`` selects how the centre p_t is computed:

    - none: there is no window.
    - monotonic: p_t is t, clipped to the position of the last token.
    - predictive: p_t = S sigmoid(v . tanh(W s_t)) for S source tokens, with learned v and W. The weights are
      multiplied by exp(-(i - p_t)^2 / (2 (D / 2)^2)) at position i, and then do not sum to 1.

    Example:
        >>> attention = RecurrentAttention("general", query_dim=8, memory_dim=6)
        >>> query, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 6)
        >>> padding_mask = torch.zeros(2, 5, dtype=torch.bool)
        >>> context, weights = attention(query, memory, attention.compute_keys(memory), padding_mask)
        >>> context.shape, weights.shape
        (torch.Size([2, 3, 6]), torch.Size([2, 3, 5]))
    """

    def __init__(
        self,
        score: str,
        query_dim: int,
        memory_dim: int,
        local: str = "none",
        window: Optional[int] = None,
        longest: int = 1024,
    ):
        super().__init__()
        if SCORES[score].needs_equal_widths and query_dim != memory_dim:
            raise InputError(
                f"Expected states of equal widths for --score {score}, got {query_dim} in the decoder and "
                f"2 x {memory_dim // 2} in the encoder. Use --decoder-hidden-size {memory_dim} or --score "
                "general."
            )
        if local == "none" and window is not None:
            raise InputError(
                f"--local-window {window} has no effect without --local. Add --local monotonic or --local "
                "predictive."
            )
        if local != "none" and (window is None or window < 1):
            raise InputError(
                f"--local {local} needs a window of at least 1 token on each side. Add --local-window 10."
            )
        self.score = SCORES[score](query_dim, memory_dim, longest)
        self.local, self.window = local, window
        if local == "predictive":
            self.place_proj = Linear(query_dim, query_dim, bias=False)
            self.place_v = Linear(query_dim, 1, bias=False)

    def compute_keys(self, memory: Tensor) -> Tensor:
        """Compute the part [B, S, width] of the attention scores that depends only on encoder states.

        The result is computed once per sentence and passed to :meth:`forward` as ``keys``.
        """
        return self.score.compute_keys(memory)

    def forward(
        self, query: Tensor, memory: Tensor, keys: Tensor, padding_mask: Tensor, first: int = 0
    ) -> Tuple[Tensor, Tensor]:
        """Compute the contexts [B, T, M] and the attention weights [B, T, S].

        Weights are 0 outside the window and where ``padding_mask`` [B, S] is True. Padding may be on either
        side. ``keys`` come from :meth:`compute_keys`. Monotonic attention also needs ``first``, the position
        of the first decoder state.
        """
        positions = (~padding_mask).cumsum(dim=1) - 1  # 0 at the first real token, undefined at padding
        scores = self.score(query, keys, positions)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        attention_mask = padding_mask[:, None]
        if self.local == "none":
            weights = masked_softmax(scores, attention_mask)
        else:
            lengths = (~padding_mask).sum(dim=1)[:, None, None]
            distance = positions[:, None] - self.window_center(query, lengths, first).to(scores.dtype)
            weights = masked_softmax(scores, attention_mask | (distance.abs() > self.window))
            if self.local == "predictive":
                weights = weights * torch.exp(-2.0 * (distance / self.window) ** 2)
        weights = weights.to(memory.dtype)
        return weights @ memory, weights

    def window_center(self, query: Tensor, lengths: Tensor, first: int) -> Tensor:
        """Compute the window centres [B, T, 1] of T queries, for sources of ``lengths`` [B, 1, 1] tokens.

        ``first`` is the position of the first query, which only monotonic attention needs.
        """
        if self.local == "monotonic":
            steps = torch.arange(first, first + query.size(1), device=query.device)[None, :, None]
            return torch.minimum(steps, lengths - 1)
        return lengths * torch.sigmoid(self.place_v(torch.tanh(self.place_proj(query))))
