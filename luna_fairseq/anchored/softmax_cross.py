"""Softmax attention to the source in place of Luna's unpack attention."""

from typing import Any, Dict, NamedTuple, Optional, Tuple

from torch import Tensor

from luna_fairseq.anchored.attention import AnchoredAttention, of_context
from luna_fairseq.modules.batch import NO_PADDING, Geometry, Source
from luna_fairseq.modules.heads import build_projection, dropout_probability, split_heads
from luna_fairseq.modules.luna_attention import AttentionWeights
from luna_fairseq.modules.memory import map_tensors
from luna_fairseq.ops.attention import luna_attention, naive_attention


class SoftmaxMemory(NamedTuple):
    """A context, ready to be read by softmax attention.

    Attributes:
        key, value: [B, H, S, K]
        place: with a diagonal, the middle of each token, in tokens [B, S]
    """

    key: Tensor
    value: Tensor
    place: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "SoftmaxMemory":
        """Return the memory of ``sentences`` [B'], in their order."""
        return map_tensors(lambda x: x.index_select(0, sentences), self)


class SoftmaxCrossAttention(AnchoredAttention):
    """Softmax attention to all tokens of the context, with the interface of Luna attention.

    Pack attention still updates the packed sequence P for the next layer. P need not be anchored.

    Args:
        embed_dim: model width C
        num_heads: number of heads H
        num_pack_heads: number of heads of pack attention (default: None, H)
        dropout: dropout probability of the attention weights (default: 0)
        untie_kv: give keys and values of pack attention separate projections (default: False)
        anchor_strength: initial gamma of pack attention (default: None, rows of P have no places)
        diagonal: add a diagonal prior to the softmax attention (default: False)
        packs: update P; False in the last layer, whose packed context nothing reads (default: True)
    """

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
        self.context_k_proj, self.context_v_proj = build_projection(embed_dim), build_projection(embed_dim)

    def has_projection(self, name: str) -> bool:
        """Return True if the attention has the projection ``name``.

        Projections that would get no gradient are not built, because they break distributed training.
        """
        return self.packs if name.startswith("pack_") else name == "unpack_q"

    def pack(
        self,
        packed: Tensor,
        context: Tensor,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
        need_weights: bool = False,
    ) -> Tuple[Optional[Tensor], SoftmaxMemory]:
        """Pack the context, and project its keys and values for :meth:`read`.

        See :meth:`LunaAttention.pack` for the arguments.

        Returns:
            the packed context [L, B, C], or None if this attention does not pack, and the memory
        """
        packed_context = None
        if self.packs:
            packed_context, _ = self.attend_to_context(packed, context, source, geometry)
        key, value = self.context_k_proj(context), self.context_v_proj(context)
        heads = split_heads(key, self.num_heads), split_heads(value, self.num_heads)
        place = None if self.diagonal is None else of_context(geometry).token_place
        return packed_context, SoftmaxMemory(*heads, place)

    def weights(
        self,
        query: Tensor,
        packed: Tensor,
        context: Tensor,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
    ) -> AttentionWeights:
        """Compute all weights of one call; see :meth:`LunaAttention.weights`."""
        if geometry is None:
            geometry = self.find_geometry(query, packed, context, source)
        pack: Any = None
        read: Any
        if self.packs:
            _, pack = self.attend_to_context(packed, context, source, geometry, need_weights=True)
        _, memory = self.pack(packed, context, source, geometry)
        _, read = self.unpack(query, memory, source, geometry, need_weights=True)
        return AttentionWeights(pack, None, read.transpose(0, 1))

    def read(
        self, q: Tensor, memory: Any, source: Source, geometry: Optional[Geometry], need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Read the tokens, and no row of P; see :meth:`LunaAttention.read`."""
        mask, dropout = source.padding_mask, dropout_probability(self.dropout_module)
        diagonal = self.diagonal_of(q, geometry, memory.place, mask)
        bias = None if diagonal is None else diagonal.bias()
        inputs = q, memory.key, memory.value, mask, dropout, bias
        return naive_attention(*inputs) if need_weights else (luna_attention(*inputs), None)

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        # After pruning, a former inner layer may be the last one. Its pack attention is dropped.
        if not self.packs:
            for name in [name for name in state_dict if name.startswith(f"{prefix}pack_")]:
                del state_dict[name]
        super()._load_from_state_dict(state_dict, prefix, *args)
