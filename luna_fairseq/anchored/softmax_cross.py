"""Softmax attention to the source in the place of unpack attention: what an anchored encoder is best read
with."""

from typing import Any, Dict, NamedTuple, Optional, Tuple

from torch import Tensor

from luna_fairseq.anchored.attention import AnchoredAttention, AnchoredCrossAttention, masks_of
from luna_fairseq.anchored.places import middles
from luna_fairseq.modules.decoding_state import select_sentences
from luna_fairseq.modules.heads import dropout_probability, projection, split_heads
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.sentences import Masks, Sentences
from luna_fairseq.ops.attention import luna_attention, naive_attention


class SoftmaxCache(NamedTuple):
    """What softmax attention reads of a context.

    Attributes:
        key, value: [B, H, S, K]
        padding_mask: [B, S], True at padding; None where there is none
        place: with a diagonal, the middle of each token, in tokens [B, S]
    """

    key: Tensor
    value: Tensor
    padding_mask: Optional[Tensor] = None
    place: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "SoftmaxCache":
        """That of the ``sentences`` [B'], in their order."""
        return select_sentences(self, sentences)


class SoftmaxCrossAttention(AnchoredAttention):
    """Softmax attention of X to the context, called as Luna attention is. P is packed beside it for the next
    layer, and need not be anchored.

    Args:
        embed_dim, num_heads, num_pack_heads, dropout, untie_kv: of :class:`LunaAttention`
        anchor_strength: how strongly pack attention is drawn initially; None for the paper's P (default:
            None)
        diagonal: draw attention to where the context is read at the query's pace (default: False)
        packs: pack P; where no layer follows, nothing reads it (default: True)
    """

    cache_type: Any = SoftmaxCache

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_pack_heads: Optional[int] = None,
        dropout: float = 0.0,
        untie_kv: bool = False,
        anchor_strength: Optional[float] = None,
        diagonal: bool = False,
        packs: bool = True,
    ):
        self.packs = packs
        super().__init__(embed_dim, num_heads, num_pack_heads, dropout, untie_kv)
        if anchor_strength is not None:
            self.build_anchors(embed_dim, anchor_strength, diagonal)
        self.context_k_proj, self.context_v_proj = projection(embed_dim), projection(embed_dim)

    def has_projection(self, name: str) -> bool:
        """Whether there is the projection; a parameter without gradient breaks DDP."""
        return self.packs if name.startswith("pack_") else name == "unpack_q"

    def pack(
        self,
        packed: Tensor,
        context: Tensor,
        context_padding_mask: Masks = None,
        need_weights: bool = False,
    ) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        """As :meth:`LunaAttention.pack`; the packed context is None where P is not packed."""
        if not self.packs:
            return None, None
        return super().pack(packed, context, context_padding_mask, need_weights)

    def cache(
        self,
        packed_context: Optional[Tensor],
        pack_weights: Optional[Tensor] = None,
        context: Optional[Tensor] = None,
        sentences: Optional[Sentences] = None,
    ) -> Any:
        """What :meth:`unpack` reads of the context [S, B, C]."""
        sentences = sentences or Sentences()
        key, value = self.context_k_proj(context), self.context_v_proj(context)
        heads = split_heads(key, self.num_heads), split_heads(value, self.num_heads)
        place = None
        if self.diagonal is not None:  # where tokens stand, the rows have no part in
            mask, _ = masks_of(context, context, Sentences(sentences.padding_mask, sentences.padding_mask))
            place = sentences.once("token middles", lambda: middles(mask, mask)[1])
        return SoftmaxCache(*heads, sentences.padding_mask, place)

    def read(
        self, q: Tensor, cache: SoftmaxCache, sentences: Sentences, need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """As :meth:`LunaAttention.read`; the rows of P are not read."""
        mask, dropout = cache.padding_mask, dropout_probability(self.dropout_module)
        diagonal = self.diagonal_of(q, sentences, cache.place, mask)
        bias = None if diagonal is None else diagonal.bias()
        inputs = q, cache.key, cache.value, mask, dropout, bias
        return naive_attention(*inputs) if need_weights else (luna_attention(*inputs), None)

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        # A last layer that was an inner one before layers were pruned has pack attention that nothing reads.
        if not self.packs:
            for name in [name for name in state_dict if name.startswith(f"{prefix}pack_")]:
                del state_dict[name]
        super()._load_from_state_dict(state_dict, prefix, *args)


def cross_attention(cfg: Any, options: Dict[str, Any], packs: bool) -> LunaAttention:
    """Attention to the source as ``cfg`` asks for it, with Luna attention's ``options``; ``packs`` as of
    :class:`SoftmaxCrossAttention`."""
    strength = cfg.anchor_strength if cfg.anchored_packed else None
    anchors = {"anchor_strength": strength, "diagonal": cfg.diagonal_prior}
    if cfg.cross_attention == "softmax":
        return SoftmaxCrossAttention(**options, **anchors, packs=packs)
    if not cfg.anchored_packed:
        return LunaAttention(**options)
    return AnchoredCrossAttention(**options, **anchors, lookup=cfg.packed_lookup)
