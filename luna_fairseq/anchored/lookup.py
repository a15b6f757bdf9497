"""Look-up attention: queries attend to the packed context and to the tokens of a few segments.

The context of S tokens is divided into L segments, runs of at most W consecutive tokens. Row i of the packed
context summarizes segment i, but individual words cannot be recovered from the summary. Each query therefore
also attends to the tokens of ``number`` segments, those whose rows have the largest logits. One softmax
covers rows and tokens. Each query and head chooses by its own logits, so the choice at a decoder position
does not depend on later target tokens. In a short context, of at most 64 tokens, queries attend to all
tokens.

Shapes: T queries q [B, H, T, K] for batch size B and H heads of dimension K, not yet scaled by K^-0.5; keys k
and values v [B, H, L, K] of the packed context; learned bias ``gate`` [H] of the token logits;
``packed_padding_mask`` [B, L], True at padded rows. Attention weights are before dropout.
"""

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.chosen import choose_segments, read_chosen
from luna_fairseq.anchored.decoding_memory import DecodingMemory
from luna_fairseq.anchored.dense import Tokens, dense_attention
from luna_fairseq.anchored.diagonal import Diagonal
from luna_fairseq.anchored.segments import Segments, is_short_context, num_segments_read, segment_of_tokens
from luna_fairseq.modules.batch import can_branch_on_values
from luna_fairseq.modules.memory import ReadWeights
from luna_fairseq.ops.attention import disable_autocast, masked_softmax
from luna_fairseq.ops.forms import Form, FormTable, otherwise


def naive_lookup_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    token_k: Tensor,
    token_v: Tensor,
    gate: Tensor,
    number: int,
    context_padding_mask: Tensor,
    packed_padding_mask: Tensor,
    dropout: float = 0.0,
    row_bias: Optional[Tensor] = None,
    token_bias: Optional[Tensor] = None,
) -> Tuple[Tensor, Tensor, Tensor]:
    """Compute look-up attention by its formula, as a reference for the fast implementations.

    Queries attend to the L rows of the packed context, each of which summarizes a segment of the context, and
    to the tokens of the ``number`` segments whose rows have the largest logits.

    The queries q [B, H, T, K] are unscaled. Keys and values are k and v [B, H, L, K] for the rows, and
    token_k and token_v [B, H, S, K] for the tokens. The biases ``gate`` [H] and ``token_bias`` [B, H, T, S]
    are added to the logits of the tokens, and ``row_bias`` [B, H, T, L] to the logits of the rows.
    context_padding_mask [B, S] and packed_padding_mask [B, L] are True at padding.

    Return the output [B, H, T, K], the row weights [B, H, T, L], and the token weights [B, H, T, S]. Tokens
    that a query does not attend to have a weight of zero.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    L = k.size(2)
    with disable_autocast(q.device):
        scaled = q.to(dtype) * q.size(-1) ** -0.5
        rows = scaled @ k.to(dtype).transpose(-2, -1)
        tokens = scaled @ token_k.to(dtype).transpose(-2, -1) + gate.to(dtype)[:, None, None]
        if row_bias is not None:
            rows = rows + row_bias
        if token_bias is not None:
            tokens = tokens + token_bias
        chosen = choose_segments(rows, packed_padding_mask, number)
        looked_up = torch.zeros_like(rows, dtype=torch.bool).scatter(3, chosen, True)
        segment = segment_of_tokens(context_padding_mask, packed_padding_mask).clamp(max=L - 1)
        read = looked_up.gather(3, segment[:, None, None, :].expand(-1, *rows.shape[1:3], -1))
        read = read | is_short_context(context_padding_mask)[:, None, None, None]
        masked = torch.cat(
            [
                packed_padding_mask[:, None, None, :].expand_as(rows),
                context_padding_mask[:, None, None, :] | ~read,
            ],
            dim=-1,
        )
        logits = torch.cat([rows, tokens], dim=-1)
        weights = masked_softmax(logits, masked)
        output = F.dropout(weights, dropout) @ torch.cat([v, token_v], dim=2).to(dtype)
    weights = weights.to(q.dtype)
    return output.to(q.dtype), weights[..., :L], weights[..., L:]


class LookedUp(NamedTuple):
    """Output [B, H, T, K] and attention weights of look-up attention, for T queries and H heads.

    Attributes:
        row_weights: weights [B, H, T, L] of the rows.
        token_weights: weights [B, H, T, N, W] of the tokens in the N chosen segments.
        segment: indices [B, H, T, N] of the chosen segments.
    """

    output: Tensor
    row_weights: Tensor
    token_weights: Tensor
    segment: Tensor


def lookup_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Segments,
    gate: Tensor,
    number: int,
    packed_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    diagonal: Optional[Diagonal] = None,
) -> LookedUp:
    """Compute look-up attention from tokens that are arranged by segment.

    A query has at most L + max(number * W, 64 + W) keys. The result equals :func:`naive_lookup_attention` up
    to rounding.

    The queries q [B, H, T, K] are unscaled. k and v [B, H, L, K] are the keys and values of the rows, and
    ``segments`` holds the keys and values of the tokens. The bias ``gate`` [H] is added to the logits of the
    tokens, and ``diagonal`` is a bias toward keys near an expected position. ``dropout`` is the dropout
    probability of the attention weights, which are returned before dropout.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    scaled = q * q.size(-1) ** -0.5
    rows = (scaled @ k.transpose(-2, -1)).to(dtype)
    if diagonal is not None:
        rows = rows + diagonal.bias()
    read = read_chosen(segments, rows, packed_padding_mask, number)
    tokens = read.scores(scaled).to(dtype)
    # In the softmax, adding the gate to the tokens is equivalent to subtracting it from the rows, which are
    # fewer.
    rows = rows - gate.to(dtype)[:, None, None]
    if diagonal is not None:
        tokens = tokens + diagonal.bias_at(read.place)
    sizes = [rows.size(-1), tokens.size(-1)]
    if packed_padding_mask is None:
        # No row is masked, so the weights of masked tokens are exactly zero.
        tokens = tokens.masked_fill(read.masked, torch.finfo(dtype).min)
        weights = torch.cat([rows, tokens], dim=-1).softmax(dim=-1).to(q.dtype)
    else:
        masked_rows = packed_padding_mask[:, None, None, :].expand_as(rows)
        masked = torch.cat([masked_rows, read.masked], dim=-1)
        weights = masked_softmax(torch.cat([rows, tokens], dim=-1), masked).to(q.dtype)
    dropped_rows, dropped_tokens = F.dropout(weights, dropout).split(sizes, dim=-1)
    row_weights, token_weights = weights.split(sizes, dim=-1)
    token_weights = token_weights.unflatten(-1, (read.segment.size(-1), -1))
    output = dropped_rows @ v + read.weighted_sum(dropped_tokens)
    return LookedUp(output, row_weights, token_weights, read.segment)


def _can_split(tokens: Any, number: int) -> bool:
    has_short = isinstance(tokens, Segments) and tokens.is_short is not None
    return has_short and can_branch_on_values(tokens.is_short)


def _should_split(tokens: Any, number: int) -> bool:
    L, W = tokens.key.shape[2:4]
    return _can_split(tokens, number) and num_segments_read(number, L, W, has_short=True) > number


LOOKUP_FORMS = FormTable(
    "look-up attention",
    Form(
        "prepared",
        "decoding on a CPU, layout whole (AnchoredCrossAttention.prepare)",
        "114 of 677 operator calls of a decoding step at base size",
        lambda tokens, number: isinstance(tokens, DecodingMemory),
        lambda tokens, number: isinstance(tokens, DecodingMemory),
    ),
    Form(
        "dense",
        "layouts whole and numbered",
        "gathers and blocks: one softmax attention to the rows and all tokens",
        lambda tokens, number: isinstance(tokens, Tokens),
        lambda tokens, number: isinstance(tokens, Tokens),
    ),
    Form(
        "split",
        "layout segments, short and long contexts in one batch, values can be read (a CPU, no graph)",
        "surplus segments of the long contexts",
        _should_split,
        _can_split,
    ),
    Form(
        "segments",
        "otherwise",
        "nothing: one call for all contexts",
        otherwise,
        lambda tokens, number: isinstance(tokens, Segments),
    ),
)


def mixed_lookup_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Segments,
    gate: Tensor,
    number: int,
    packed_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    diagonal: Optional[Diagonal] = None,
) -> Tensor:
    """Compute the output [B, H, T, K] of look-up attention for a batch that may have short and long contexts.

    If a short context may fill more than ``number`` segments, short and long contexts are computed
    separately, so that long contexts do not become slower. On a GPU or in a compiled or exported graph, the
    batch is not split, because the number of short contexts is not known in advance. ``gate`` [H] is a bias
    of the token logits. :func:`lookup_attention` describes the other arguments.
    """
    if LOOKUP_FORMS.choose(segments, number) == "segments":
        inputs = q, k, v, segments, gate, number, packed_padding_mask, dropout, diagonal
        return lookup_attention(*inputs).output
    is_short: Any = segments.is_short
    L, W = segments.key.shape[2:4]
    outputs, examples = [], [(~is_short).nonzero().flatten(), is_short.nonzero().flatten()]
    for has_short, chosen in zip((False, True), examples):
        if not len(chosen):
            continue
        heads = q.index_select(0, chosen), k.index_select(0, chosen), v.index_select(0, chosen)
        selected = segments.select(chosen)._replace(is_short=None)
        mask = None if packed_padding_mask is None else packed_padding_mask.index_select(0, chosen)
        prior = None if diagonal is None else diagonal.select(chosen)
        if has_short:
            count = num_segments_read(number, L, W, has_short=True)
            output = _read_first_segments(*heads, selected, gate, count, mask, dropout, prior)
        else:
            output = lookup_attention(*heads, selected, gate, number, mask, dropout, prior).output
        outputs.append(output)
    return torch.cat(outputs).index_select(0, torch.cat(examples).argsort())


def _read_first_segments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Segments,
    gate: Tensor,
    number: int,
    packed_padding_mask: Optional[Tensor],
    dropout: float,
    diagonal: Optional[Diagonal],
) -> Tensor:
    """Compute look-up attention for short contexts, whose tokens are all in the first ``number`` segments.

    The other arguments and the result [B, H, T, K] are the same as for :func:`mixed_lookup_attention`.
    """
    mask, bias = segments.padding_mask[:, :number].flatten(1), None
    rows_mask = packed_padding_mask
    if rows_mask is None:
        rows_mask = mask.new_zeros(mask.size(0), k.size(2))
    if diagonal is not None and segments.place is not None:
        place = segments.place[:, :number].flatten(1)[:, None, None]
        bias = torch.cat([diagonal.bias(), diagonal.bias_at(place)], dim=-1)
    key, value = (x[:, :, :number].flatten(2, 3) for x in (segments.key, segments.value))
    tokens = Tokens(key, value, torch.cat([rows_mask, mask], dim=1))
    return dense_attention(q, k, v, tokens, gate, number, packed_padding_mask, dropout, bias)[0]


def split_lookup_weights(looked_up: LookedUp, position: Tensor, S: int) -> ReadWeights:
    """Convert the weights of look-up attention to row weights [B, H, T, L] and token weights [B, H, T, S].

    ``position`` [B, L, W] is the position of each token of each segment in the context of S tokens.
    """
    B, H, T, N, W = looked_up.token_weights.shape
    read = (
        position[:, None]
        .expand(-1, H, -1, -1)
        .gather(2, looked_up.segment.reshape(B, H, T * N, 1).expand(-1, -1, -1, W))
    )
    tokens = looked_up.token_weights.new_zeros(B, H, T, S)
    tokens = tokens.scatter_add(3, read.view(B, H, T, N * W), looked_up.token_weights.flatten(3))
    return ReadWeights(looked_up.row_weights, tokens)
