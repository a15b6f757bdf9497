"""Softmax attention to the source in the place of unpack attention: what an anchored encoder is best read
with."""

from typing import Any, NamedTuple, Optional, Tuple

from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.modules.anchors import Anchors, placed
from luna_fairseq.modules.beams import beams_to_positions, hypotheses_each, positions_to_beams
from luna_fairseq.modules.heads import merge_heads, projection, split_heads
from luna_fairseq.modules.kept_context import select_sentences
from luna_fairseq.modules.luna_attention import LunaAttention


class KeptTokens(NamedTuple):
    """What softmax attention reads of a context.

    Attributes:
        key, value: [B, H, S, K]
        padding_mask: [B, S], True at padding; None where there is none
        place: with a diagonal, the middle of each token, in tokens [B, S]
    """

    key: Tensor
    value: Tensor
    padding_mask: Optional[Tensor] = None
    place: Any = None

    def select(self, sentences: Tensor) -> "KeptTokens":
        """That of the ``sentences`` [B'], in their order."""
        return select_sentences(self, sentences)


class SoftmaxCrossAttention(LunaAttention):
    """Softmax attention of X to the context, called as Luna attention is. P is packed beside it for the next
    layer.

    Args:
        packs: pack P; where no layer follows, nothing reads it (default: True)
        args, kwargs: of :class:`LunaAttention`; there is no look-up, as there is nothing to look up

    Raises:
        InputError: a look-up, or what :class:`LunaAttention` refuses
    """

    kept_type: Any = KeptTokens

    def __init__(self, *args: Any, packs: bool = True, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.lookup:
            raise InputError(
                "--packed-lookup and --cross-attention softmax do not go together: give --packed-lookup 0"
            )
        self.packs = packs
        for name in [name for name, _ in self.named_children()]:
            # A parameter without gradient breaks DDP.
            if (
                name in ("unpack_k_proj", "unpack_v_proj", "unpack_kv_proj")
                or not packs
                and name.startswith("pack_")
            ):
                delattr(self, name)
        embed_dim = self.out_proj.out_features
        self.context_k_proj = projection(embed_dim)
        self.context_v_proj = projection(embed_dim)
        if not packs:
            self.pack_anchor = None

    def pack(self, *args: Any, **kwargs: Any) -> Tuple[Any, Optional[Tensor]]:
        """As :meth:`LunaAttention.pack`; the packed context is None where P is not packed."""
        return super().pack(*args, **kwargs) if self.packs else (None, None)

    def keep(
        self,
        packed_context: Optional[Tensor],
        pack_weights: Optional[Tensor] = None,
        context: Optional[Tensor] = None,
        context_padding_mask: Optional[Tensor] = None,
        anchors: Optional[Anchors] = None,
        read: Optional[Tuple[Tensor, Tensor]] = None,
    ) -> Any:
        """What :meth:`unpack` reads of the context [S, B, C]."""
        key, value = self.context_k_proj(context), self.context_v_proj(context)
        heads = split_heads(key, self.num_heads), split_heads(value, self.num_heads)
        place = None if self.diagonal is None else placed(anchors).token_place
        return KeptTokens(*heads, context_padding_mask, place)

    def unpack(
        self,
        query: Tensor,
        kept: Any,
        packed_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
        anchors: Optional[Anchors] = None,
        query_place: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """As :meth:`LunaAttention.unpack`; the rows of P are not read."""
        beams = hypotheses_each(query.size(1), kept.key.size(0))
        q = beams_to_positions(split_heads(self.unpack_q_proj(query), self.num_heads), beams)
        diagonal = self._diagonal(query, query_place, beams, kept.place, kept.padding_mask)
        bias = None if diagonal is None else diagonal.bias()
        output, weights = self._attend(q, kept.key, kept.value, kept.padding_mask, need_weights, bias)
        if weights is not None:
            weights = positions_to_beams(weights, beams).transpose(0, 1)  # [H, B, T, S]
        return self.out_proj(merge_heads(positions_to_beams(output, beams))), weights
