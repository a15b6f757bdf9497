"""Softmax attention to all tokens of the source, in place of Luna's unpack attention."""

from typing import Any, Dict, NamedTuple, Optional, Tuple

from torch import Tensor

from luna_fairseq.anchored.attention import AnchoredAttention, require_context_geometry
from luna_fairseq.anchored.decoding_memory import (
    DecodingMemory,
    prepare_keys,
    prepare_places,
)
from luna_fairseq.modules.batch import NO_PADDING, Geometry, Source
from luna_fairseq.modules.heads import build_projection, dropout_probability, split_heads
from luna_fairseq.modules.luna_attention import AttentionWeights
from luna_fairseq.modules.memory import map_tensors
from luna_fairseq.ops.attention import is_eager_on_cpu, luna_attention, naive_attention


class SoftmaxMemory(NamedTuple):
    """Cached keys and values of a context, which softmax attention reads.

    B is the batch size, H the number of heads, S the length of the context, and K the head width.

    Attributes:
        key: keys [B, H, S, K].
        value: values [B, H, S, K].
        place: middle [B, S] of each token, in tokens from the beginning (default: None, no diagonal prior).
    """

    key: Tensor
    value: Tensor
    place: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "SoftmaxMemory":
        """Return the memory of some sentences, in the given order.

        Args:
            sentences: indices [n] of the sentences to return.

        Returns:
            The memory of these n sentences.
        """
        return map_tensors(lambda x: x.index_select(0, sentences), self)


class SoftmaxCrossAttention(AnchoredAttention):
    """Softmax attention to all tokens of the context, with the interface of Luna attention.

    Pack attention still updates the packed sequence P for the next layer. P need not be anchored.

    B is the batch size, H the number of heads, T the number of queries, S the length of the context, L the
    number of rows of P, C the model width, and K the head width.

    Args:
        embed_dim: model width C.
        num_heads: number of heads H.
        num_pack_heads: number of heads of pack attention (default: None, H).
        dropout: dropout probability of the attention weights (default: 0).
        untie_kv: give keys and values of pack attention separate projections (default: False).
        anchor_strength: initial strength gamma of the distance bias in pack attention (default: None, rows of
            P have no places).
        diagonal: add a diagonal prior to the softmax attention (default: False).
        packs: update P. False in the last layer, whose packed context is unused (default: True).

    Example:
        >>> import torch
        >>> attention = SoftmaxCrossAttention(embed_dim=64, num_heads=8)
        >>> query, packed, context = torch.randn(20, 4, 64), torch.randn(16, 4, 64), torch.randn(50, 4, 64)
        >>> output, packed_context, _ = attention(query, packed, context)
        >>> output.shape, packed_context.shape
        (torch.Size([20, 4, 64]), torch.Size([16, 4, 64]))
    """

    reads_only_rows = False

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
        """Return True if the attention has a projection of this name.

        Projections that would get no gradient are not built, because they break distributed training.

        Args:
            name: name without its suffix, such as "pack_q" or "unpack_kv".

        Returns:
            True if the projection exists.
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
        """Compute pack attention, and cache the keys and values of the context.

        Args:
            packed: packed sequence P [L, B, C].
            context: context [S, B, C].
            source: masks of the context and of P (default: no padding).
            geometry: distances and places of the batch (default: None).
            need_weights: not used, because unpack attention does not read P.

        Returns:
            - packed context [L, B, C], or None if this attention does not pack.
            - cached keys and values of the context.
        """
        packed_context = None
        if self.packs:
            packed_context, _ = self.attend_to_context(packed, context, source, geometry)
        key, value = self.context_k_proj(context), self.context_v_proj(context)
        heads = split_heads(key, self.num_heads), split_heads(value, self.num_heads)
        place = None if self.diagonal is None else require_context_geometry(geometry).token_place
        return packed_context, SoftmaxMemory(*heads, place)

    def prepare(self, memory: Any, source: Source = NO_PADDING) -> Any:
        """Convert the cached keys and values to the form that decoding reads fastest.

        Args:
            memory: keys and values returned by :meth:`pack`.
            source: masks of the context and of the packed sequence P (default: no padding).

        Returns:
            The converted keys and values, or the argument ``memory`` itself if they cannot be converted.
        """
        if not (self.prepares and is_eager_on_cpu(memory.key)):
            return memory
        mask, S = source.padding_mask, memory.key.size(2)
        places = None
        if self.diagonal is not None:
            places = prepare_places(self.diagonal.strength(), self.diagonal.ratio(), memory.place, mask)
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
        """Compute the weights of pack attention and of the queries over the context.

        Args:
            query: queries X [T, B, C].
            packed: packed sequence P [L, B, C].
            context: context [S, B, C].
            source: masks of the context and of P (default: no padding).
            geometry: distances and places of the batch (default: None, the attention computes its own).

        Returns:
            The weights of pack attention (None if this attention does not pack), and the weights over the
            context.
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

    def read(
        self, q: Tensor, memory: Any, source: Source, geometry: Optional[Geometry], need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Compute softmax attention over the tokens of the context.

        Args:
            q: projected queries [B, H, T, K].
            memory: keys and values returned by :meth:`pack` or :meth:`prepare`.
            source: masks of the context and of the packed sequence P.
            geometry: distances and places of the batch, or None without a diagonal prior.
            need_weights: also return the weights.

        Returns:
            - output [B, H, T, K].
            - weights [B, H, T, S] over the context, or None.
        """
        mask, dropout = source.padding_mask, dropout_probability(self.dropout_module)
        if isinstance(memory, DecodingMemory):
            output, weights = memory.read(q, None if geometry is None else geometry.target, dropout)
            return output, weights if need_weights else None
        diagonal = self.compute_diagonal(geometry, memory.place, mask)
        bias = None if diagonal is None else diagonal.bias()
        inputs = q, memory.key, memory.value, mask, dropout, bias
        return naive_attention(*inputs) if need_weights else (luna_attention(*inputs), None)

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Load the parameters, without the projections of pack attention if this module does not pack.

        After pruning, a former inner layer may be the last one. Its pack attention is dropped.

        Args:
            state_dict: parameters of the whole model by name, from which unused ones are removed.
            prefix: prefix of this module's names.
            *args: further arguments of torch's method.
        """
        if not self.packs:
            for name in [name for name in state_dict if name.startswith(f"{prefix}pack_")]:
                del state_dict[name]
        super()._load_from_state_dict(state_dict, prefix, *args)
