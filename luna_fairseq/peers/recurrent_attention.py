"""Attention of recurrent decoders: what each state of the decoder reads of the states of the encoder.

``c_t = sum_i alpha_ti h_i`` with ``alpha_t = softmax_i(score(s_t, h_i))`` over the real tokens. Which state
s_t is asks the decoder; here are the scores (Bahdanau et al., 2015; Luong et al., 2015, section 3.1; Graves
et al., 2014), each an entry of :data:`SCORES`, and Luong's local windows (section 3.2).
"""

from typing import Dict, Optional, Tuple, Type

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq.models.lstm import Linear
from luna_fairseq.errors import InputError
from luna_fairseq.ops.masked_softmax import masked_softmax

LOCAL = ("none", "monotonic", "predictive")


class DotScore(nn.Module):
    """``s . h``, for states of one width.

    Args:
        query_dim: width of the decoder's states s
        memory_dim: width of the encoder's states h
        longest: source tokens there may be, for the score that counts them
    """

    needs_equal_widths = True

    def __init__(self, query_dim: int, memory_dim: int, longest: int):
        super().__init__()

    def keys(self, memory: Tensor) -> Tensor:
        """What is computed of the memory [B, S, M] once for all queries: [B, S, *]."""
        return memory

    def forward(self, query: Tensor, keys: Tensor, places: Tensor) -> Tensor:
        """Scores [B, T, S] of queries [B, T, Q]; places [B, S] number the tokens from the first real one."""
        return query @ keys.transpose(1, 2)


class GeneralScore(DotScore):
    """``s . (W h)``: a product that bridges two widths."""

    needs_equal_widths = False

    def __init__(self, query_dim: int, memory_dim: int, longest: int):
        super().__init__(query_dim, memory_dim, longest)
        self.memory_proj = Linear(memory_dim, query_dim, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        return self.memory_proj(memory)


class ConcatScore(GeneralScore):
    """``v . tanh(W [s; h])``, additive; W as two matrices, so that W h is computed once. v as wide as s."""

    def __init__(self, query_dim: int, memory_dim: int, longest: int):
        super().__init__(query_dim, memory_dim, longest)
        self.query_proj = Linear(query_dim, query_dim)
        self.v = Linear(query_dim, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor, places: Tensor) -> Tensor:
        return self.v(torch.tanh(self.query_proj(query)[:, :, None] + keys[:, None])).squeeze(-1)


class LocationScore(DotScore):
    """``(W s)_i``: of the place alone, whatever stands there; W has a row for each of ``longest`` places."""

    needs_equal_widths = False

    def __init__(self, query_dim: int, memory_dim: int, longest: int):
        super().__init__(query_dim, memory_dim, longest)
        self.place_proj = Linear(query_dim, longest, bias=False)

    def forward(self, query: Tensor, keys: Tensor, places: Tensor) -> Tensor:
        longest = self.place_proj.out_features
        if places.size(1) > longest and int(places.max()) >= longest:
            raise InputError(
                f"a source sentence has {int(places.max()) + 1} tokens, and --score location ends at "
                f"{longest}: shorten it, or train with a larger --max-source-positions"
            )
        scores = self.place_proj(query)
        return scores.gather(2, places.clamp(min=0)[:, None].expand(-1, query.size(1), -1))


class ContentScore(DotScore):
    """``beta cos(s, h)``, for states of one width. Graves' strength beta is learned, one for all, from 1 on:
    the softmax of cosines alone cannot be sharp."""

    def __init__(self, query_dim: int, memory_dim: int, longest: int):
        super().__init__(query_dim, memory_dim, longest)
        self.strength = nn.Parameter(torch.ones(()))

    def keys(self, memory: Tensor) -> Tensor:
        return F.normalize(memory, dim=-1)

    def forward(self, query: Tensor, keys: Tensor, places: Tensor) -> Tensor:
        return self.strength * (F.normalize(query, dim=-1) @ keys.transpose(1, 2))


SCORES: Dict[str, Type[DotScore]] = {
    "dot": DotScore,
    "general": GeneralScore,
    "concat": ConcatScore,
    "location": LocationScore,
    "content": ContentScore,
}


class RecurrentAttention(nn.Module):
    """Attention of states of a decoder to those of an encoder.

    Local attention sees the window [p - D, p + D] alone. Monotonic: p_t = t, but at most the last token, so
    that a long target has a window, too. Predictive: p_t = S sigmoid(v . tanh(W s_t)), S the number of
    tokens, and the weights are multiplied by exp(-(i - p_t)^2 / (2 (D / 2)^2)), after which they no longer
    sum to one.

    Args:
        score: one of :data:`SCORES`
        query_dim: width of the decoder's states
        memory_dim: width of the encoder's states
        local: one of :data:`LOCAL`
        window: D in tokens; None without ``local``
        longest: source tokens there may be, with the score "location" (default: 1,024)

    Raises:
        InputError: widths that the score does not bridge, local attention without a window or the other way
            round
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
                f"--score {score} multiplies states of one width, and the decoder's have {query_dim}, "
                f"the encoder's 2 x {memory_dim // 2}: give --decoder-hidden-size {memory_dim}, or --score "
                "general"
            )
        if local == "none" and window is not None:
            raise InputError(
                f"--local-window {window} changes nothing without --local monotonic or predictive: give one"
            )
        if local != "none" and (window is None or window < 1):
            raise InputError(
                f"--local {local} needs a window of 1 token or more on each side: give --local-window 10"
            )
        self.score = SCORES[score](query_dim, memory_dim, longest)
        self.local, self.window = local, window
        if local == "predictive":
            self.place_proj = Linear(query_dim, query_dim, bias=False)
            self.place_v = Linear(query_dim, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """What :meth:`forward` needs of the memory [B, S, M] besides itself, once for all queries."""
        return self.score.keys(memory)

    def forward(
        self, query: Tensor, memory: Tensor, keys: Tensor, padding_mask: Tensor, first: int = 0
    ) -> Tuple[Tensor, Tensor]:
        """
        Args:
            query: [B, T, Q]
            memory: [B, S, M]
            keys: what :meth:`keys` returns
            padding_mask: [B, S], True at padding, which may be on either side
            first: place of the first query in its sentence, for monotonic attention

        Returns:
            context [B, T, M]; weights [B, T, S], 0 at padding and outside of windows
        """
        places = (~padding_mask).cumsum(dim=1) - 1  # from 0 at the first real token; padding takes some place
        scores = self.score(query, keys, places)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        attention_mask = padding_mask[:, None]
        if self.local == "none":
            weights = masked_softmax(scores, attention_mask)
        else:
            lengths = (~padding_mask).sum(dim=1)[:, None, None]
            distance = places[:, None] - self.centre(query, lengths, first).to(scores.dtype)
            weights = masked_softmax(scores, attention_mask | (distance.abs() > self.window))
            if self.local == "predictive":
                weights = weights * torch.exp(-2.0 * (distance / self.window) ** 2)
        weights = weights.to(memory.dtype)
        return weights @ memory, weights

    def centre(self, query: Tensor, lengths: Tensor, first: int) -> Tensor:
        """p [B, T, 1] for queries [B, T, Q] and lengths [B, 1, 1]."""
        if self.local == "monotonic":
            steps = torch.arange(first, first + query.size(1), device=query.device)[None, :, None]
            return torch.minimum(steps, lengths - 1)
        return lengths * torch.sigmoid(self.place_v(torch.tanh(self.place_proj(query))))
