"""Luna attention: the packed sequence P attends to a context, and queries attend to the result.

The two steps are called pack and unpack attention (Luna, section 3.1).
"""

from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import NO_PADDING, Geometry, Source
from luna_fairseq.modules.heads import (
    ProjectingAttention,
    build_output_projection,
    build_projection,
    check_heads,
    dropout_probability,
    fold_rows,
    linear_parameters,
    merge_heads,
    project_packed,
    rows_per_sentence,
    split_heads,
    unfold_rows,
)
from luna_fairseq.modules.memory import AbsorbedMemory, PackedMemory
from luna_fairseq.ops.absorbed import (
    HeadProjection,
    absorb_projection,
    absorbed_pack,
    absorbed_unpack,
    multiply_by_head,
    projection_of_heads,
    projection_to_heads,
    saves_time,
)
from luna_fairseq.ops.attention import is_eager_on_cpu, luna_attention, naive_attention


class AttentionWeights(NamedTuple):
    """Weights of pack attention, of unpack attention, and of the queries over the context.

    Attributes:
        pack: weights [B, H, L, S] of the rows of the packed sequence P over the context, or None if the
            attention does not pack.
        unpack: weights [B, H, T, L] of the queries over the rows of P, or None if the queries do not read P.
        read: total weights [B, H, T, S] of the queries over the context, through P and directly.
    """

    pack: Optional[Tensor]
    unpack: Optional[Tensor]
    read: Tensor


class LunaAttention(ProjectingAttention):
    """Luna attention for encoder self-attention and decoder cross-attention.

    Pack attention computes Y_P = Attn(P, context), in which the packed sequence P of fixed length attends to
    the context. Unpack attention computes Y_X = Attn(X, Y_P), in which the queries X attend to the result
    (Luna, equations 3 to 5). The cost is linear in the lengths of X and of the context.

    A subclass can add a bias to the logits with :meth:`pack_bias` and :meth:`unpack_bias`. It can store and
    read more keys and values with :meth:`remember` and :meth:`read`.

    Args:
        embed_dim: width C of the queries, of P, of the context and of the output.
        num_heads: number of heads H of unpack attention.
        num_pack_heads: number of heads of pack attention (default: None, ``num_heads``).
        dropout: dropout probability of pack and unpack weights (default: 0).
        untie_kv: use separate projections for keys and values. Otherwise both are the same tensor (default:
            False).

    Raises:
        InputError: ``embed_dim`` is not a multiple of a number of heads.

    Attributes:
        watcher: function that receives (attention, query, packed, context, source, geometry) in every call of
            :meth:`forward`, so that a report can compute :meth:`weights` (default: None).

    Example:
        >>> import torch
        >>> attention = LunaAttention(embed_dim=64, num_heads=8)
        >>> query, packed, context = torch.randn(20, 4, 64), torch.randn(16, 4, 64), torch.randn(50, 4, 64)
        >>> output, packed_context, _ = attention(query, packed, context)
        >>> output.shape, packed_context.shape
        (torch.Size([20, 4, 64]), torch.Size([16, 4, 64]))
    """

    prepares = True  # :meth:`prepare` may change the form of a memory. Exported graphs set this to False.
    packs = True  # The attention returns a packed context, which the layer adds to P and normalises.
    reads_only_rows = True  # Queries read the rows of the packed context, and no tokens beside them.

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_pack_heads: Optional[int] = None,
        dropout: float = 0.0,
        untie_kv: bool = False,
    ):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_pack_heads = num_pack_heads or num_heads
        check_heads(embed_dim, self.num_heads, "attention heads")
        check_heads(embed_dim, self.num_pack_heads, "projected attention heads")
        self.untie_kv = untie_kv
        self.watcher: Optional[Callable[..., None]] = None
        self.dropout_module = nn.Dropout(dropout)
        kv_names = ("k", "v") if untie_kv else ("kv",)
        names = "pack_q", "unpack_q", *(f"{step}_{name}" for step in ("pack", "unpack") for name in kv_names)
        for name in names:
            linear = build_projection(embed_dim)
            if self.has_projection(name):
                self.add_module(f"{name}_proj", linear)
        self.out_proj = build_output_projection(embed_dim)

    def has_projection(self, name: str) -> bool:
        """Return True if the attention has a projection of this name.

        Args:
            name: name without its suffix, such as "pack_q" or "unpack_kv".
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
        """Pack the context into the packed sequence P, then attend from the queries to the packed context.

        Args:
            query: queries X [T, B, C].
            packed: packed sequence P [L, B, C].
            context: context [S, B, C], equal to X in encoder self-attention.
            context_padding_mask: boolean mask [B, S], True at padding of the context (default: None, no
                padding).
            packed_padding_mask: boolean mask [B, L], True at rows of P that are padding (default: None, no
                padding).
            need_weights: also return the weights over the context (default: False).
            source: both masks in one value, instead of the two arguments (default: None).
            geometry: token positions of the batch, computed by the encoder or decoder (default: None, the
                attention computes its own).

        Returns:
            Tuple of three values:

            - output Y_X [T, B, C].
            - packed context Y_P [L, B, C].
            - weights over the context for each unpack head [H, B, T, S], or None without ``need_weights``.
              They are the unpack weights times the mean of the pack weights over heads.

        Raises:
            InputError: ``source`` was passed together with a mask.
        """
        if source is None:
            source = Source(context_padding_mask, packed_padding_mask)
        elif not (context_padding_mask is None and packed_padding_mask is None):
            raise InputError("the masks of the context and of P were given twice. Pass them or a Source")
        if geometry is None:
            geometry = self.find_geometry(query, packed, context, source)
        if self.watcher is not None:
            self.watcher(self, query, packed, context, source, geometry)
        packed_context, memory = self.pack(packed, context, source, geometry, need_weights)
        output, weights = self.unpack(query, memory, source, geometry, need_weights)
        return output, packed_context, weights

    def find_geometry(
        self, query: Tensor, packed: Tensor, context: Tensor, source: Source
    ) -> Optional[Geometry]:
        """Compute the token positions that the attention reads in one call.

        The paper's attention does not read positions, so this class returns None.

        Args:
            query: queries X [T, B, C].
            packed: packed sequence P [L, B, C].
            context: context [S, B, C].
            source: masks of the context and of P.
        """
        return None

    def pack(
        self,
        packed: Tensor,
        context: Tensor,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
        need_weights: bool = False,
    ) -> Tuple[Optional[Tensor], Any]:
        """Compute pack attention and cache the keys and values of unpack attention.

        Args:
            packed: packed sequence P [L, B, C].
            context: context [S, B, C].
            source: masks of the context and of P (default: no padding).
            geometry: token positions of the batch, computed by the encoder or decoder (default: None).
            need_weights: also cache the weights of P over the context, for :meth:`unpack` (default: False).

        Returns:
            Tuple of the packed context Y_P [L, B, C] and the memory that :meth:`unpack` reads.
        """
        packed_context, weights = self.attend_to_context(packed, context, source, geometry, need_weights)
        pack_weights = None if weights is None else weights.mean(dim=1)
        return packed_context, self.remember(packed_context, pack_weights, context, geometry)

    def attend_to_context(
        self,
        packed: Tensor,
        context: Tensor,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Compute pack attention, and return the packed context with the attention weights.

        Args:
            packed: packed sequence P [L, B, C].
            context: context [S, B, C].
            source: masks of the context and of P (default: no padding).
            geometry: token positions of the batch, computed by the encoder or decoder (default: None).
            need_weights: also return the weights (default: False).

        Returns:
            Tuple of the packed context Y_P [L, B, C] and the weights of all pack heads [B, H, L, S], or None
            without ``need_weights``.
        """
        q = project_packed(self.pack_q_proj, packed, self.num_pack_heads)
        bias = self.pack_bias(context, geometry)
        settings = source.padding_mask, dropout_probability(self.dropout_module), bias
        projections = self.key_value_projections("pack")
        if not need_weights and saves_time(q, context, *projections):
            parts = [projection_to_heads(x.weight, x.bias, self.num_pack_heads) for x in projections]
            return merge_heads(absorbed_pack(q, context, parts[0], parts[-1], *settings)), None
        inputs = q, *self.keys_and_values("pack", context, self.num_pack_heads), *settings
        output, weights = naive_attention(*inputs) if need_weights else (luna_attention(*inputs), None)
        return merge_heads(output), weights

    def pack_bias(self, context: Tensor, geometry: Optional[Geometry]) -> Optional[Tensor]:
        """Return a bias that is added to the logits of pack attention, or None for no bias.

        The paper's attention has no bias. Subclasses can return one.

        Args:
            context: context [S, B, C].
            geometry: token positions of the batch, or None.

        Returns:
            Bias that can be broadcast to [B, H, L, S], or None.
        """
        return None

    def remember(
        self,
        packed_context: Tensor,
        pack_weights: Optional[Tensor],
        context: Tensor,
        geometry: Optional[Geometry],
    ) -> Any:
        """Project the packed context to the keys and values that :meth:`unpack` reads.

        Args:
            packed_context: packed context Y_P [L, B, C].
            pack_weights: mean [B, L, S] of the pack weights over heads, or None.
            context: context [S, B, C].
            geometry: token positions of the batch, or None.

        Returns:
            Memory: named tuple of tensors [B, ..] with a method ``select``.
        """
        key, value = self.keys_and_values("unpack", packed_context, self.num_heads)
        return PackedMemory(key, value, pack_weights)

    def prepare(self, memory: Any, source: Source = NO_PADDING) -> Any:
        """Return the memory in the form in which decoding reads it fastest, without weights over the context.

        A memory of few sentences absorbs the projections of the queries and of the output, see
        :class:`AbsorbedMemory`. The absorbed memory has at most half the size of the two projections, so
        that a step reads and multiplies less. Other memories are unchanged.

        Args:
            memory: memory of the B sentences that :meth:`pack` returned.
            source: masks of the context and of the packed sequence P (default: no padding).
        """
        B, H, L, _ = memory.key.shape
        is_small = 2 * B * H * L <= self.embed_dim
        if not (self.prepares and is_small and is_eager_on_cpu(memory.key)):
            return memory
        query, output = linear_parameters(self.unpack_q_proj), linear_parameters(self.out_proj)
        if query is None or output is None:
            return memory
        projections = projection_to_heads(*query, H), projection_of_heads(*output, H)
        return absorb_projections(memory, *projections, source.packed_padding_mask)

    def unpack(
        self,
        query: Tensor,
        memory: Any,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Compute unpack attention of the queries over a packed context.

        Args:
            query: queries X [T, B n, C]. Each n consecutive hypotheses read the same sentence.
            memory: memory of the B sentences that :meth:`pack` returned.
            source: masks of the context and of the packed sequence P (default: no padding).
            geometry: token positions of the batch, computed by the encoder or decoder (default: None).
            need_weights: also return the weights over the context (default: False).

        Returns:
            Tuple of the output Y_X [T, B n, C] and the weights over the context [H, B n, T, S], or None
            without ``need_weights``.

        Raises:
            InputError: The number of hypotheses is not a multiple of the number of sentences, or
                ``need_weights`` is True and :meth:`pack` did not cache its weights.
        """
        n = rows_per_sentence(query.size(1), memory.key.size(0))
        if isinstance(memory, AbsorbedMemory):
            if need_weights:
                self.saved_pack_weights(memory)
            return self._read_absorbed(query, memory, n), None
        if n == 1 and self.reads_only_rows and not need_weights:
            if saves_time(memory.key, query, self.unpack_q_proj, self.out_proj):
                return self._unpack_absorbed(query, memory, source, geometry), None
        q = fold_rows(split_heads(self.unpack_q_proj(query), self.num_heads), n)
        output, weights = self.read(q, memory, source, geometry, need_weights)
        if weights is not None:
            weights = unfold_rows(weights, n).transpose(0, 1)  # [H, B n, T, S]
        return self.out_proj(merge_heads(unfold_rows(output, n))), weights

    def _unpack_absorbed(
        self, query: Tensor, memory: Any, source: Source, geometry: Optional[Geometry]
    ) -> Tensor:
        """Compute :meth:`unpack` without projections of the queries.

        Args:
            query: queries X [T, B, C].
            memory: tensors that :meth:`pack` returned.
            source: masks of the context and of the packed sequence P.
            geometry: token positions of the batch, or None.

        Returns:
            Output [T, B, C].
        """
        return absorbed_unpack(
            query,
            memory.key,
            memory.value,
            projection_to_heads(self.unpack_q_proj.weight, self.unpack_q_proj.bias, self.num_heads),
            projection_of_heads(self.out_proj.weight, self.out_proj.bias, self.num_heads),
            source.packed_padding_mask,
            dropout_probability(self.dropout_module),
            self.unpack_bias(memory, source, geometry),
        )

    def _read_absorbed(self, query: Tensor, memory: AbsorbedMemory, n: int) -> Tensor:
        """Compute :meth:`unpack` for a memory that has absorbed the projections.

        Args:
            query: queries X [T, B n, C].
            memory: absorbed memory of the B sentences.
            n: number of consecutive hypotheses that share a sentence.
        """
        T, _, C = query.shape
        if T == 1:
            x = query.reshape(-1, n, C)
        else:
            x = query.unflatten(1, (-1, n)).transpose(0, 1).flatten(1, 2)  # [B, T n, C]
        logits = torch.baddbmm(memory.key_bias, x, memory.key)
        weights = logits.unflatten(-1, (self.num_heads, -1)).softmax(dim=-1)
        dropout = dropout_probability(self.dropout_module)
        if dropout:
            weights = F.dropout(weights, dropout)
        output = torch.baddbmm(memory.value_bias, weights.flatten(-2), memory.value)  # [B, T n, C]
        return output.unflatten(1, (T, n)).transpose(0, 1).reshape(query.shape)

    def read(
        self, q: Tensor, memory: Any, source: Source, geometry: Optional[Geometry], need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Compute unpack attention for queries that are already projected and split into heads.

        Args:
            q: projected queries [B, H, T, K].
            memory: memory of the B sentences that :meth:`pack` returned.
            source: masks of the context and of the packed sequence P.
            geometry: token positions of the batch, or None.
            need_weights: also return the weights over the context.

        Returns:
            Tuple of the output [B, H, T, K] and the weights over the context [B, H, T, S], or None without
            ``need_weights``.
        """
        bias = self.unpack_bias(memory, source, geometry)
        dropout = dropout_probability(self.dropout_module)
        inputs = q, memory.key, memory.value, source.packed_padding_mask, dropout, bias
        if not need_weights:
            return luna_attention(*inputs), None
        output, weights = naive_attention(*inputs)
        return output, weights @ self.saved_pack_weights(memory)

    def unpack_bias(self, memory: Any, source: Source, geometry: Optional[Geometry]) -> Optional[Tensor]:
        """Return a bias that is added to the logits of unpack attention, or None for no bias.

        The paper's attention has no bias. Subclasses can return one.

        Args:
            memory: memory of the B sentences that :meth:`pack` returned.
            source: masks of the context and of the packed sequence P.
            geometry: token positions of the batch, or None.

        Returns:
            Bias that can be broadcast to [B, H, T, L], or None.
        """
        return None

    def saved_pack_weights(self, memory: Any) -> Tensor:
        """Return the pack weights that :meth:`pack` cached, with a dimension for heads.

        Args:
            memory: memory that :meth:`pack` returned.

        Returns:
            Mean [B, 1, L, S] of the pack weights over heads.

        Raises:
            InputError: :meth:`pack` did not cache its weights.
        """
        if memory.pack_weights is None:
            raise InputError(
                "Expected a memory with pack weights, got a memory without weights. Pass need_weights=True "
                "from the first decoding step on"
            )
        return memory.pack_weights.unsqueeze(1)

    def keys_and_values(self, step: str, x: Tensor, num_heads: int) -> Tuple[Tensor, Tensor]:
        """Project a sequence to the keys and values of pack or unpack attention.

        Args:
            step: "pack" or "unpack".
            x: context or packed context [S, B, C].
            num_heads: number of heads H.

        Returns:
            Tuple of keys and values [B, H, S, K]. Both are the same tensor if they are tied.
        """
        key_projection, *value_projection = self.key_value_projections(step)
        key = split_heads(key_projection(x), num_heads)
        return key, split_heads(value_projection[0](x), num_heads) if value_projection else key

    def key_value_projections(self, step: str) -> List[nn.Module]:
        """Return the projection to keys and the projection to values, or their only projection if tied.

        Args:
            step: "pack" or "unpack".
        """
        names = ("k", "v") if self.untie_kv else ("kv",)
        return [getattr(self, f"{step}_{name}_proj") for name in names]

    def weights(
        self,
        query: Tensor,
        packed: Tensor,
        context: Tensor,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
    ) -> AttentionWeights:
        """Compute the weights of pack attention, of unpack attention, and of the queries over the context.

        Args:
            query: queries X [T, B, C].
            packed: packed sequence P [L, B, C].
            context: context [S, B, C].
            source: masks of the context and of P (default: no padding).
            geometry: token positions of the batch (default: None, the attention computes its own).

        Returns:
            Weights of all heads. They come from the naive attention, which stores them in full.
        """
        if geometry is None:
            geometry = self.find_geometry(query, packed, context, source)
        # With need_weights, the three values are tensors and never None.
        pack: Any
        read: Any
        unpack: Any
        packed_context, pack = self.attend_to_context(packed, context, source, geometry, need_weights=True)
        memory = self.remember(packed_context, pack.mean(dim=1), context, geometry)
        _, read = self.unpack(query, memory, source, geometry, need_weights=True)
        # Replace the pack weights by an identity matrix, in L columns after those of the S tokens. The last L
        # columns of the weights over the context are then the unpack weights; the first S columns hold the
        # weights of tokens that the queries read directly.
        S, L = context.size(0), packed.size(0)
        identity = torch.cat([packed.new_zeros(L, S), torch.eye(L).to(packed)], dim=1)
        memory = memory._replace(pack_weights=identity.expand(packed.size(1), -1, -1))
        _, unpack = self.unpack(query, memory, source, geometry, need_weights=True)
        return AttentionWeights(pack, unpack.transpose(0, 1)[..., S:], read.transpose(0, 1))


def absorb_projections(
    memory: PackedMemory,
    query: HeadProjection,
    output: HeadProjection,
    packed_padding_mask: Optional[Tensor] = None,
) -> AbsorbedMemory:
    """Multiply the keys and values of a memory by the projections of the queries and of the output.

    Args:
        memory: keys and values [B, H, L, K] of B sentences.
        query: projection of X to queries.
        output: projection of all heads to the output.
        packed_padding_mask: boolean mask [B, L], True at rows of the packed sequence P that are padding
            (default: None, no padding).
    """
    key, key_bias = absorb_projection(memory.key, query)  # [B, H, L, C] and [B, H, L]
    value = multiply_by_head(memory.value, output.weight)  # [B, H, L, C]
    if packed_padding_mask is not None:
        padding = packed_padding_mask[:, None, :]
        key_bias = key_bias.masked_fill(padding, torch.finfo(key_bias.dtype).min)
        value = value.masked_fill(padding.unsqueeze(-1), 0.0)
    return AbsorbedMemory(
        key.flatten(1, 2).transpose(1, 2).contiguous(),
        key_bias.flatten(1).unsqueeze(1),
        value.flatten(1, 2),
        output.bias.expand(len(key), 1, -1).contiguous(),
    )
