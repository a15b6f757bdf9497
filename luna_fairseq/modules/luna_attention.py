"""Luna attention: attention from queries to a context through a packed sequence P of fixed length.

Luna attention has two steps (Luna, section 3.1). In pack attention, P attends to the context. In unpack
attention, the queries attend to the result, the packed context.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import NO_PADDING, Geometry, Source
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.heads import (
    ProjectingAttention,
    build_output_projection,
    build_projection,
    check_heads,
    dropout_probability,
    join_hypotheses,
    merge_heads,
    project_packed,
    separate_hypotheses,
    split_heads,
)
from luna_fairseq.modules.memory import PackedMemory, ReadWeights, require_pack_weights
from luna_fairseq.modules.options import StackOptions
from luna_fairseq.ops.absorbed import (
    PACK_FORMS,
    UNPACK_FORMS,
    AbsorbedMemory,
    HeadProjection,
    absorb_projections,
    absorbed_pack,
    absorbed_unpack,
    should_prepare,
    split_input_projection,
    split_output_projection,
)
from luna_fairseq.ops.attention import key_mask, naive_attention, softmax_attention


class AttentionWeights(NamedTuple):
    """Weights of the two steps of Luna attention, and their combined weights over the context.

    Shapes: batch size B, H heads, T queries, S context tokens, L rows of the packed sequence P.

    Attributes:
        pack: attention weights [B, H, L, S] from rows of P to context tokens. None if the module does not
            compute pack attention.
        unpack: attention weights [B, H, T, L] from queries to rows of P. None if the queries do not attend to
            P.
        read: combined weights [B, H, T, S] from queries to context tokens, the sum of attention through P and
            any direct attention.
    """

    pack: Optional[Tensor]
    unpack: Optional[Tensor]
    read: Tensor


class LunaAttention(ProjectingAttention):
    """Luna attention for encoder self-attention and decoder cross-attention.

    Luna attention has two steps (Luna, equations 3 to 5). In pack attention, the packed sequence P of fixed
    length attends to the context: Y_P = Attn(P, context). In unpack attention, the queries X attend to the
    result: Y_X = Attn(X, Y_P). The cost is linear in the lengths of X and of the context.

    Subclasses that set ``needs_geometry`` can add a bias to the logits by overriding :meth:`pack_bias` and
    :meth:`unpack_bias`. To cache additional keys and values and attend to them, subclasses override
    :meth:`remember` and :meth:`attend_to_rows`. Subclasses that override :meth:`attend_to_rows` must set
    ``absorbs_queries`` to False, because the implementations of unpack attention without projected queries
    bypass this method.

    Shapes: T queries X, S context tokens, L rows of P, batch size B, width C, H heads of dimension K = C / H.

    Args:
        embed_dim: width C of the queries, of P, of the context and of the output.
        num_heads: number of unpack attention heads.
        num_pack_heads: number of pack attention heads (default: ``num_heads``).
        dropout: dropout probability of the attention weights (default: 0).
        untie_kv: use separate projections for keys and values. Otherwise a single projection computes both
            (default: False).
        builders: functions that build dropout and linear layers (default: torch's).

    Raises:
        InputError: ``embed_dim`` is not a multiple of ``num_heads`` or of ``num_pack_heads``.

    Attributes:
        watcher: callback used to log :meth:`weights`. None if nothing is logged. :meth:`pack` passes this
            module and the keyword arguments packed, context, source and geometry. :meth:`unpack` passes this
            module, query and geometry.

    Example:
        >>> import torch
        >>> attention = LunaAttention(embed_dim=64, num_heads=8)
        >>> query, packed, context = torch.randn(20, 4, 64), torch.randn(16, 4, 64), torch.randn(50, 4, 64)
        >>> output, packed_context, _ = attention(query, packed, context)
        >>> output.shape, packed_context.shape
        (torch.Size([20, 4, 64]), torch.Size([16, 4, 64]))
    """

    needs_geometry = False  # No weight depends on the positions of tokens.
    packs = True  # `forward` returns a packed context, which the layer adds to P.
    absorbs_queries = True  # Unpack attention may be computed without projecting the queries.

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_pack_heads: Optional[int] = None,
        dropout: float = 0.0,
        untie_kv: bool = False,
        builders: Builders = TORCH,
    ):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_pack_heads = num_pack_heads or num_heads
        check_heads(embed_dim, self.num_heads, "attention heads")
        check_heads(embed_dim, self.num_pack_heads, "projected attention heads")
        self.untie_kv = untie_kv
        self.watcher: Optional[Callable[..., None]] = None
        self.dropout_module = builders.dropout(dropout, "LunaAttention")
        names: Tuple[str, ...] = ("pack_q", "unpack_q", "pack_kv", "unpack_kv")
        if untie_kv:
            names = ("pack_q", "unpack_q", "pack_k", "pack_v", "unpack_k", "unpack_v")
        for name in names:
            # Drawn even if it is not kept, so that a seed gives the same values to the projections after it.
            linear = build_projection(embed_dim)
            if self.has_projection(name):
                self.add_module(f"{name}_proj", builders.linear(linear))
        self.out_proj = builders.linear(build_output_projection(embed_dim))

    def has_projection(self, name: str) -> bool:
        """Return True if this module has the projection ``name``, such as "pack_q" or "unpack_kv".

        Luna attention has all projections. A subclass returns False for projections that it does not use.
        """
        return True

    def forward(
        self,
        query: Tensor,
        packed: Tensor,
        context: Tensor,
        context_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
        source: Optional[Source] = None,
        geometry: Optional[Geometry] = None,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """Compute pack attention of the packed sequence P, then unpack attention of the queries.

        Args:
            query: queries X [T, B, C].
            packed: packed sequence P [L, B, C].
            context: context [S, B, C], equal to X in encoder self-attention.
            context_padding_mask: boolean mask [B, S], True at padding of the context.
            packed_padding_mask: boolean mask [B, L], True at padded rows of P.
            need_weights: also return the weights over the context.
            source: both masks as a :class:`Source`, instead of the two mask arguments.
            geometry: token positions, if the weights depend on distance (default: computed by
                :meth:`find_geometry` if ``needs_geometry`` is True).

        Returns:
            Output Y_X [T, B, C], packed context Y_P [L, B, C], and weights [H, B, T, S] of the queries over
            the context (None if ``need_weights`` is False). The weights are the product of the unpack weights
            and the mean of the pack weights over heads.
        """
        if source is None:
            source = Source(context_padding_mask, packed_padding_mask)
        elif not (context_padding_mask is None and packed_padding_mask is None):
            raise InputError("Expected either padding masks or source, got both. Pass one of them")
        if geometry is None and self.needs_geometry:
            geometry = self.find_geometry(query, packed, context, source)
        packed_context, memory = self.pack(packed, context, source, geometry, need_weights)
        output, weights = self.unpack(query, memory, source, geometry, need_weights)
        return output, packed_context, weights

    def find_geometry(
        self, query: Tensor, packed: Tensor, context: Tensor, source: Source
    ) -> Optional[Geometry]:
        """Return the token positions on which the attention weights depend. The default is None."""
        return None

    def pack(
        self,
        packed: Tensor,
        context: Tensor,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
        need_weights: bool = False,
    ) -> Tuple[Optional[Tensor], Any]:
        """Compute pack attention, and project the result to the keys and values of unpack attention.

        In pack attention, the packed sequence P attends to the context. In unpack attention, queries attend
        to the result. A decoder calls this method once per source, and :meth:`unpack` at every step.

        Args:
            packed: packed sequence P [L, B, C].
            context: context [S, B, C].
            source: padding masks of the context and of P.
            geometry: token positions, if the weights depend on distance.
            need_weights: also return the pack weights with the keys and values, so that :meth:`unpack` can
                return weights over the context.

        Returns:
            Packed context Y_P [L, B, C], and the keys and values to cache for :meth:`unpack`, by default a
            :class:`PackedMemory`.
        """
        if self.watcher is not None:
            self.watcher(self, packed=packed, context=context, source=source, geometry=geometry)
        packed_context, weights = self.attend_to_context(packed, context, source, geometry, need_weights)
        mean_weights = None if weights is None else weights.mean(dim=1)
        return packed_context, self.remember(packed_context, mean_weights, context, geometry)

    def attend_to_context(
        self,
        packed: Tensor,
        context: Tensor,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Compute pack attention: the packed sequence P [L, B, C] attends to the context [S, B, C].

        Return the packed context Y_P [L, B, C], and the pack weights [B, H, L, S] (None if ``need_weights``
        is False).
        """
        H = self.num_pack_heads
        q = project_packed(self.pack_q_proj, packed, H)
        bias = self.pack_bias(context, geometry) if self.needs_geometry else None
        dropout = dropout_probability(self.dropout_module)
        projections = self.key_value_projections("pack")
        if not need_weights and PACK_FORMS.choose(q, context, projections) == "absorbed":
            by_head = [split_input_projection(x.weight, x.bias, H) for x in projections]
            return merge_heads(
                absorbed_pack(q, context, by_head[0], by_head[-1], source.padding_mask, dropout, bias)
            ), None
        k, v = self.keys_and_values("pack", context, H)
        inputs = q, k, v, key_mask(source.padding_mask), dropout, bias
        if not need_weights:
            return merge_heads(softmax_attention(*inputs)), None
        output, weights = naive_attention(*inputs)
        return merge_heads(output), weights

    def pack_bias(self, context: Tensor, geometry: Optional[Geometry]) -> Optional[Tensor]:
        """Return a bias that broadcasts to the logits [B, H, L, S] of pack attention. The default is None.

        Subclasses override this method to weight context tokens by their positions.
        """
        return None

    def remember(
        self,
        packed_context: Tensor,
        mean_pack_weights: Optional[Tensor],
        context: Tensor,
        geometry: Optional[Geometry],
    ) -> Any:
        """Project the packed context Y_P [L, B, C] to the keys and values [B, H, L, K] of unpack attention.

        The result is a :class:`PackedMemory`. A subclass may return another named tuple with the same fields
        and further ones, such as keys of the context's tokens. The first dimension of every tensor must be B.

        Args:
            packed_context: packed context Y_P [L, B, C].
            mean_pack_weights: pack weights [B, L, S], averaged over heads. None if no weights are requested.
            context: context [S, B, C].
            geometry: token positions, if the weights depend on distance.
        """
        key, value = self.keys_and_values("unpack", packed_context, self.num_heads)
        return PackedMemory(key, value, mean_pack_weights)

    def prepare(self, memory: Any, source: Source) -> Any:
        """Optimize the keys and values cached by :meth:`pack` for decoding, given the masks of the source.

        On a CPU and for a small batch, multiply the keys by the query projection and the values by the output
        projection. The resulting :class:`AbsorbedMemory` does not provide attention weights over the context.
        Otherwise, and if ``memory`` has pack weights, or if the attention has a bias or does not absorb
        queries, return ``memory`` unchanged.
        """
        is_plain = self.absorbs_queries and not self.needs_geometry and memory.mean_pack_weights is None
        if not (is_plain and should_prepare(memory.key, (self.unpack_q_proj, self.out_proj))):
            return memory
        projections = self._query_and_output()
        return absorb_projections(memory.key, memory.value, *projections, source.packed_padding_mask)

    def unpack(
        self,
        query: Tensor,
        memory: Any,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Compute unpack attention: T queries attend to the packed context.

        Args:
            query: queries X [T, B * n, C] for B source sentences. In beam search, each sentence has n
                adjacent hypotheses (candidate translations). Otherwise n is 1.
            memory: keys and values of the B sentences, returned by :meth:`pack` or :meth:`prepare`.
            source: padding masks of the context and of the packed sequence P.
            geometry: token positions, if the weights depend on distance.
            need_weights: also return the weights over the context.

        Returns:
            Output Y_X [T, B * n, C], and weights [H, B * n, T, S] over the context (None if ``need_weights``
            is False).

        Raises:
            InputError: ``need_weights`` is True, but ``memory`` has no pack weights.
        """
        if self.watcher is not None:
            self.watcher(self, query=query, geometry=geometry)
        B, (T, num_hypotheses, _) = memory.key.size(0), query.shape
        form, dropout = "projected", dropout_probability(self.dropout_module)
        if not need_weights:
            projections = self.unpack_q_proj, self.out_proj
            form = UNPACK_FORMS.choose(query, memory, projections, self.absorbs_queries)
        elif isinstance(memory, AbsorbedMemory):
            require_pack_weights(memory)
        if form == "prepared":
            output = memory.attend(join_hypotheses(query, B), self.num_heads, dropout)
            return separate_hypotheses(output, num_hypotheses), None
        if form == "absorbed":
            mask, bias = source.packed_padding_mask, None
            if self.needs_geometry:
                bias = self.unpack_bias(memory, source, geometry)
            by_head = self._query_and_output()
            return absorbed_unpack(query, memory.key, memory.value, *by_head, mask, dropout, bias), None
        q = split_heads(self.unpack_q_proj(query), self.num_heads, B)  # [B, H, n T, K]
        output, read = self.attend_to_rows(q, memory, source, geometry, need_weights)
        weights = None
        if read is not None:
            total = read.total(memory)
            weights = total.transpose(0, 1).reshape(total.size(1), num_hypotheses, T, total.size(-1))
        return self.out_proj(merge_heads(output, num_hypotheses)), weights

    def _query_and_output(self) -> Tuple[HeadProjection, HeadProjection]:
        """Return the query projection and the output projection of unpack attention, split into heads."""
        query, output = self.unpack_q_proj, self.out_proj
        return (
            split_input_projection(query.weight, query.bias, self.num_heads),
            split_output_projection(output.weight, output.bias, self.num_heads),
        )

    def attend_to_rows(
        self, q: Tensor, memory: Any, source: Source, geometry: Optional[Geometry], need_weights: bool
    ) -> Tuple[Tensor, Optional[ReadWeights]]:
        """Compute unpack attention for projected queries.

        Args:
            q: projected queries [B, H, T, K], split into heads.
            memory: keys and values returned by :meth:`pack`.
            source: padding masks of the context and of P.
            geometry: token positions, if the weights depend on distance.
            need_weights: also return the unpack weights.

        Returns:
            Output [B, H, T, K], and the unpack weights (None if ``need_weights`` is False).
        """
        bias = self.unpack_bias(memory, source, geometry) if self.needs_geometry else None
        dropout = dropout_probability(self.dropout_module)
        inputs = q, memory.key, memory.value, key_mask(source.packed_padding_mask), dropout, bias
        if not need_weights:
            return softmax_attention(*inputs), None
        output, weights = naive_attention(*inputs)
        return output, ReadWeights(weights)

    def unpack_bias(self, memory: Any, source: Source, geometry: Optional[Geometry]) -> Optional[Tensor]:
        """Return a bias that broadcasts to the logits [B, H, T, L] of unpack attention. The default is None.

        Subclasses override this method to weight rows of P by their positions.
        """
        return None

    def keys_and_values(self, step: str, x: Tensor, num_heads: int) -> Tuple[Tensor, Tensor]:
        """Project x [S, B, C] to keys and values [B, H, S, K] of pack or unpack attention.

        ``step`` is "pack" or "unpack". If ``untie_kv`` is False, keys and values are the same tensor.
        """
        projections = self.key_value_projections(step)
        key = split_heads(projections[0](x), num_heads)
        return key, split_heads(projections[1](x), num_heads) if self.untie_kv else key

    def key_value_projections(self, step: str) -> List[nn.Module]:
        """Return the key and value projections of pack or unpack attention.

        ``step`` is "pack" or "unpack". If ``untie_kv`` is False, the list holds one shared projection.
        """
        if self.untie_kv:
            return [getattr(self, f"{step}_k_proj"), getattr(self, f"{step}_v_proj")]
        return [getattr(self, f"{step}_kv_proj")]

    def weights(
        self,
        query: Tensor,
        packed: Tensor,
        context: Tensor,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
    ) -> AttentionWeights:
        """Compute the pack weights, the unpack weights, and the combined weights over the context.

        :meth:`forward` describes the arguments. Use this method for short inputs, because the combined
        weights have one entry for each query and context token.
        """
        if geometry is None and self.needs_geometry:
            geometry = self.find_geometry(query, packed, context, source)
        pack: Any  # never None, because weights are requested
        packed_context, pack = self.attend_to_context(packed, context, source, geometry, need_weights=True)
        memory = self.remember(packed_context, pack.mean(dim=1), context, geometry)
        read: Any
        q = split_heads(self.unpack_q_proj(query), self.num_heads)
        _, read = self.attend_to_rows(q, memory, source, geometry, need_weights=True)
        return AttentionWeights(pack, read.rows, read.total(memory))


def attention_arguments(options: StackOptions, builders: Builders) -> Dict[str, Any]:
    """Return keyword arguments for :class:`LunaAttention`: these options, and the builders of submodules."""
    return {
        "embed_dim": options.embed_dim,
        "num_heads": options.num_heads,
        "num_pack_heads": options.num_pack_heads,
        "dropout": options.attention_dropout,
        "untie_kv": options.untie_kv,
        "builders": builders,
    }
