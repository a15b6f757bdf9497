"""Softmax attention to all source tokens, as an alternative to Luna's unpack attention.

Shapes: batch size B, H heads of dimension K, T queries, S source tokens, L rows of the packed sequence P,
width C.
"""

from typing import Any, Dict, NamedTuple, Optional, Tuple

from torch import Tensor

from luna_fairseq.anchored.attention import AnchoredAttention, require_context_geometry
from luna_fairseq.anchored.decoding_memory import (
    DecodingMemory,
    prepare_keys,
    prepare_places,
)
from luna_fairseq.modules.batch import NO_PADDING, Geometry, Source
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.heads import build_projection, dropout_probability, split_heads
from luna_fairseq.modules.luna_attention import AttentionWeights
from luna_fairseq.modules.memory import ReadWeights
from luna_fairseq.ops.attention import is_eager_on_cpu, key_mask, naive_attention, softmax_attention


class SoftmaxMemory(NamedTuple):
    """Cached keys and values [B, H, S, K] of S source tokens, with the token positions [B, S] or None."""

    key: Tensor
    value: Tensor
    place: Optional[Tensor] = None


class SoftmaxCrossAttention(AnchoredAttention):
    """Softmax cross-attention to all source tokens, with the interface of :class:`LunaAttention`.

    Pack attention still updates the packed sequence P for the self-attention of the next layer.

    Args:
        anchor_strength: initial strength gamma of the distance bias in pack attention. None for no bias.
        diagonal: add a bias toward source tokens near an expected position. Requires ``anchor_strength``.
        packs: update P. False in the last layer, whose packed context is unused.
    """

    absorbs_queries = False

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
        builders: Builders = TORCH,
    ):
        self.packs = packs
        super().__init__(embed_dim, num_heads, num_pack_heads, dropout, untie_kv, builders)
        if anchor_strength is not None:
            self.build_anchors(anchor_strength, builders, diagonal)
        self.context_k_proj = builders.linear(build_projection(embed_dim))
        self.context_v_proj = builders.linear(build_projection(embed_dim))

    def has_projection(self, name: str) -> bool:
        """Return True if ``name`` is "unpack_q" or, in a module that updates P, begins with "pack_".

        Any other projection would get no gradient, which is an error in distributed training.
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
        """Compute the packed context [L, B, C], and cache the keys and values of the source tokens.

        The packed context is the result of attention from the packed sequence P to the source. It is None if
        this module does not update P. ``need_weights`` has no effect, because :meth:`unpack` computes the
        attention weights of the source tokens directly, not from the weights of P.
        """
        if self.watcher is not None:
            self.watcher(self, packed=packed, context=context, source=source, geometry=geometry)
        packed_context = None
        if self.packs:
            packed_context, _ = self.attend_to_context(packed, context, source, geometry)
        key, value = self.context_k_proj(context), self.context_v_proj(context)
        heads = split_heads(key, self.num_heads), split_heads(value, self.num_heads)
        place = None if self.diagonal is None else require_context_geometry(geometry).token_place
        return packed_context, SoftmaxMemory(*heads, place)

    def prepare(self, memory: Any, source: Source) -> Any:
        """Precompute the scaled, masked keys and their positions, for decoding on a CPU.

        On a GPU, or while torch traces or compiles a graph, ``memory`` is returned unchanged.
        """
        if not is_eager_on_cpu(memory.key):
            return memory
        mask, S = source.padding_mask, memory.key.size(2)
        places = None
        if self.diagonal is not None:
            strength, ratio = self.diagonal()
            places = prepare_places(strength, ratio, memory.place, mask)
        bias = memory.key.new_zeros(len(memory.key), 1, 1, S)
        return DecodingMemory(*prepare_keys(memory.key, memory.value, bias, mask), places, first=S)

    def weights(
        self,
        query: Tensor,
        packed: Tensor,
        context: Tensor,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
    ) -> AttentionWeights:
        """Compute the attention weights of the rows of P and of the queries over the source tokens.

        The row weights are [B, H, L, S], or None without pack attention. The query weights are [B, H, T, S].
        """
        if geometry is None:
            geometry = self.find_geometry(query, packed, context, source)
        pack: Any = None
        read: Any
        if self.packs:
            _, pack = self.attend_to_context(packed, context, source, geometry, need_weights=True)
        _, memory = self.pack(packed, context, source, geometry)
        _, read = self.unpack(query, memory, source, geometry, need_weights=True)
        return AttentionWeights(pack, None, read.transpose(0, 1))

    def attend_to_rows(
        self, q: Tensor, memory: Any, source: Source, geometry: Optional[Geometry], need_weights: bool
    ) -> Tuple[Tensor, Optional[ReadWeights]]:
        """Compute softmax attention of queries q [B, H, T, K] to all source tokens.

        Return the output [B, H, T, K] and the token weights, which are None if ``need_weights`` is False.
        """
        mask, dropout = source.padding_mask, dropout_probability(self.dropout_module)
        if isinstance(memory, DecodingMemory):
            output, weights = memory.attend(q, None if geometry is None else geometry.target, dropout)
            return output, ReadWeights(None, weights) if need_weights else None
        diagonal = self.compute_diagonal(geometry, memory.place)
        bias = None if diagonal is None else diagonal.bias()
        inputs = q, memory.key, memory.value, key_mask(mask), dropout, bias
        if not need_weights:
            return softmax_attention(*inputs), None
        output, weights = naive_attention(*inputs)
        return output, ReadWeights(None, weights)

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Load the parameters. A module without pack attention ignores parameters of pack attention.

        A checkpoint has such parameters if this layer is last only because later layers were pruned.
        """
        if not self.packs:
            for name in [name for name in state_dict if name.startswith(f"{prefix}pack_")]:
                del state_dict[name]
        super()._load_from_state_dict(state_dict, prefix, *args)
