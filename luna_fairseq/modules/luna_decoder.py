"""Luna decoder: token embedding and a stack of Luna layers, for translation and language modeling.

Training and decoding make the same two calls. ``memory = decoder.read(encoded)`` computes the tensors of the
source that the decoder needs, once. ``output, state = decoder(tokens, memory, state)`` computes whole targets
or the next tokens. In translation, the first layer uses the last packed sequence P of the encoder. Each layer
of a language model has a learned P.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Collection, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import Geometry, Source, Target, drop_empty_mask, find_padding, token_places
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.embedding import PackedEmbedding, TokenEmbedding, drop_words
from luna_fairseq.modules.luna_attention import LunaAttention, attention_arguments
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention, causal_arguments
from luna_fairseq.modules.luna_encoder import EncoderOutput
from luna_fairseq.modules.luna_layer import LanguageModelLayer, LunaDecoderLayer, Shared
from luna_fairseq.modules.memory import DecoderMemory, DecoderState, LayerMemory
from luna_fairseq.modules.options import DecoderOptions
from luna_fairseq.ops.causal_luna import TokenCounts


class DecoderOutput(NamedTuple):
    """Output features, hidden states and attention weights of a decoder.

    Shapes: T target tokens, S source tokens, batch size B, model width C, H heads.

    Attributes:
        x: output features [B, T, C].
        states: hidden states [T, B, C] before the first layer and after each layer that runs. The final layer
            norm and the output projection are not applied to them.
        weights: for each layer, its attention weights [H, B, T, S] over the source. None if the weights were
            not requested.
    """

    x: Tensor
    states: Tuple[Tensor, ...]
    weights: Tuple[Optional[Tensor], ...]


@dataclass(frozen=True)
class DecoderAttentions:
    """Factory that builds the attention modules of a decoder, by default as in the Luna paper.

    To build other modules, a subclass overrides the methods below. If the attention weights depend on token
    positions, the subclass must also set ``needs_geometry`` and override :meth:`find_source_geometry` and
    :meth:`find_target_geometry`.

    Attributes:
        options: decoder options.
    """

    options: DecoderOptions
    needs_geometry: ClassVar[bool] = False

    def build_causal_attention(self, builders: Builders = TORCH) -> nn.Module:
        """Build the causal self-attention of one layer."""
        return LunaCausalAttention(**causal_arguments(self.options, builders))

    def build_cross_attention(self, update_packed: bool, builders: Builders = TORCH) -> nn.Module:
        """Build the cross-attention of one layer.

        ``update_packed`` is False if no later layer uses the packed context of this layer.
        """
        return LunaAttention(**attention_arguments(self.options, builders))

    def find_source_geometry(self, context: Tensor, packed: Tensor, source: Source) -> Optional[Geometry]:
        """Return the source positions as a :class:`Geometry`, or None if no attention weights need them.

        ``context`` is the encoder output [S, B, C], ``packed`` is P [L, B, C]. ``source`` has their masks.
        """
        raise NotImplementedError

    def find_target_geometry(
        self, target: Target, memory: DecoderMemory, dtype: torch.dtype, before: Any = None
    ) -> Tuple[Optional[Geometry], Any]:
        """Compute the target positions on which attention weights depend.

        The decoder calls this method once per batch or decoding step, if ``needs_geometry`` is True.

        Args:
            target: target tokens of this call, with their positions and padding mask.
            memory: cached tensors of the source sentences.
            dtype: dtype of the model.
            before: state returned by the previous call, a named tuple of tensors with one entry per
                hypothesis, or None at the beginning of the target.

        Returns:
            Positions as a :class:`Geometry`, and the state for the next call. Either is None if not needed.
        """
        raise NotImplementedError


class LunaDecoder(TokenEmbedding):
    """Luna decoder that computes features of target tokens, either for whole sequences or step by step.

    Args:
        options: decoder options.
        embed_tokens: token embedding with the attributes ``embedding_dim`` and ``padding_idx``.
        attentions: factory that builds the attention modules of the layers (default: as in the paper).
        builders: functions that build dropout, layer norms, linear layers and positions, and wrap the layers
            (default: torch's modules, and no wrapper).
        **base: constructor arguments of a second base class, if a subclass has one.

    Example:
        >>> import torch
        >>> from luna_fairseq.modules import DecoderOptions
        >>> sizes = {"embed_dim": 64, "ffn_embed_dim": 128, "num_layers": 2, "num_heads": 8}
        >>> options = DecoderOptions(**sizes, has_encoder=False)
        >>> decoder = LunaDecoder(options, torch.nn.Embedding(100, 64, padding_idx=1))
        >>> tokens = torch.randint(2, 100, (4, 20))
        >>> memory = decoder.read()  # a language model has no source
        >>> output, state = decoder(tokens[:, :10], memory, keep_state=True)
        >>> output, state = decoder(tokens[:, 10:11], memory, state)
        >>> output.x.shape, state.position
        (torch.Size([4, 1, 64]), 11)
    """

    def __init__(
        self,
        options: DecoderOptions,
        embed_tokens: nn.Module,
        attentions: Optional[DecoderAttentions] = None,
        builders: Builders = TORCH,
        **base: Any,
    ):
        super().__init__(options, embed_tokens, "LunaDecoder", builders, **base)
        C, width = options.embed_dim, embed_tokens.embedding_dim
        self.attentions = attentions or DecoderAttentions(options)
        # The order of construction is the order of the parameters in a checkpoint.
        self.quant_noise: Optional[nn.Module] = None
        if options.linear_embedding:
            self.quant_noise = builders.linear(nn.Linear(C, C, bias=False))
        self.project_in_dim = None if width == C else linear_without_bias(width, C)
        self.embed_positions = builders.positions(options, self.padding_idx)
        self.layernorm_embedding = builders.norm(C) if options.layernorm_embedding else None
        self.layers = builders.layers(self._build_layers(options, builders))
        has_norm = options.normalize_before and options.final_norm
        self.layer_norm: Optional[nn.Module] = builders.norm(C) if has_norm else None
        out = options.output_dim
        self.project_out_dim = None if out is None or out == C else linear_without_bias(C, out)

    def _build_layers(self, options: DecoderOptions, builders: Builders) -> Iterator[nn.Module]:
        """Yield the decoder layers one by one, so that each can be wrapped before the next one is built."""
        for number in range(options.num_layers):
            self_attn = self.attentions.build_causal_attention(builders)
            if options.has_encoder:
                is_last = number == options.num_layers - 1
                update_packed = not (is_last or options.non_contextual_packed)
                encoder_attn = self.attentions.build_cross_attention(update_packed, builders)
                yield LunaDecoderLayer(options, self_attn, encoder_attn, update_packed, builders)
            else:
                packed_embedding = PackedEmbedding(
                    options.projection_length,
                    options.embed_dim,
                    scale=options.scale_embedding,
                    fix_length=True,
                    builders=builders,
                )
                yield LanguageModelLayer(options, self_attn, packed_embedding, builders)

    def read(
        self,
        encoded: Optional[EncoderOutput] = None,
        for_decoding: bool = False,
        weights_of: Collection[int] = (),
        skipped: Collection[int] = (),
    ) -> DecoderMemory:
        """Compute the memory: the cached tensors of the source that the decoder reads at every position.

        Each layer packs the encoder's output into its packed sequence P, which never depends on a target
        token.

        Args:
            encoded: encoder output of B sentences. None if the decoder is a language model.
            for_decoding: optimize the memory for decoding single tokens, except in the layers of
                ``weights_of``.
            weights_of: indices of the layers whose attention weights over the source may be requested in
                :meth:`forward`.
            skipped: indices of layers to skip (LayerDrop). Their memory is None, so that :meth:`forward`
                skips them as well.
        """
        memories: List[Optional[LayerMemory]] = [None] * len(self.layers)
        if encoded is None:
            for number, layer in enumerate(self.layers):
                if number not in skipped:
                    memories[number] = layer.read()
            return DecoderMemory(tuple(memories), is_shared=True)
        packed, context, source, geometry = encoded.packed, encoded.x, encoded.source, None
        if self.attentions.needs_geometry:
            geometry = self.attentions.find_source_geometry(context, packed, source)
        for number, layer in enumerate(self.layers):
            if number not in skipped:
                updated, memories[number] = layer.read(
                    packed, context, source, geometry, number in weights_of, for_decoding
                )
                packed = encoded.packed if updated is None else updated  # None: not updated
        return DecoderMemory(tuple(memories), source)

    def forward(
        self,
        tokens: Optional[Tensor] = None,
        memory: Optional[DecoderMemory] = None,
        state: Optional[DecoderState] = None,
        embeddings: Optional[Tensor] = None,
        padding_mask: Optional[Tensor] = None,
        places: Optional[Tensor] = None,
        keep_state: Optional[bool] = None,
        weights_of: Collection[int] = (),
    ) -> Tuple[DecoderOutput, Optional[DecoderState]]:
        """Compute the output features of whole target sequences, or of the next tokens after a state.

        Shapes: T target tokens, width C' of the token embedding, B source sentences with n hypotheses each.
        The hypotheses (candidate translations in beam search) of a sentence are adjacent in the batch. In
        training n is 1.

        Args:
            tokens: target token ids [B * n, T], shifted right, with padding on the left or right. If
                ``state`` is given, pass only the next tokens. If ``embeddings`` is given, pass None.
            memory: cached tensors of the B source sentences, returned by :meth:`read`.
            state: state returned by the previous call. None at the beginning of the target.
            embeddings: token embeddings [B * n, T, C'], used instead of embedding ``tokens``.
            padding_mask: boolean mask [B * n, T], True at padding (default: derived from the padding token).
            places: index [B * n, T] of each token in its sequence, for position embeddings (default:
                zero-based indices, not counting padding).
            keep_state: return the state after these tokens (default: True if ``state`` is given).
            weights_of: indices of the layers whose attention weights over the source are returned.

        Returns:
            :class:`DecoderOutput` with output features [B * n, T, C], and the state after these tokens (None
            if ``keep_state`` is False).

        Raises:
            InputError: ``memory`` is None, ``state`` has another number of layers, or neither ``tokens`` nor
                ``padding_mask`` was passed.
        """
        if memory is None:
            raise InputError("Expected the memory of the source, got None. Pass decoder.read(encoded)")
        if state is not None and len(state.layers) != len(self.layers):
            raise InputError(
                f"Expected a state of {len(self.layers)} layers, got {len(state.layers)} layers. "
                "Pass the state that this decoder returned"
            )
        if embeddings is None:
            embeddings = self.embed_tokens(tokens)
        if padding_mask is None:
            padding_mask = find_padding(tokens, self.padding_idx)
        count, end = (None, 0) if state is None else (state.count, state.position)
        end += embeddings.size(1)
        mask = drop_empty_mask(padding_mask)
        counted_places = token_places(padding_mask, count, has_padding=mask is not None)
        x = self.embed(embeddings, mask, counted_places if places is None else places, end)

        geometry = target_state = None
        if self.attentions.needs_geometry:
            target = Target(padding_mask, counted_places, tokens)
            earlier = None if state is None else state.target
            geometry, target_state = self.attentions.find_target_geometry(target, memory, x.dtype, earlier)
        counts = None
        if keep_state or state is not None:
            T, num_hypotheses, _ = x.shape
            if count is None:
                count = torch.zeros(num_hypotheses, dtype=torch.long, device=x.device)
            counts = TokenCounts.compute(count, T, mask, x.dtype)
        shared = Shared(memory.source, mask, geometry, counts)

        states, all_weights, layer_states = [x], [], []
        for number, (layer, layer_memory) in enumerate(zip(self.layers, memory.layers)):
            layer_state, weights = None, None
            if layer_memory is not None:
                earlier = None if state is None else state.layers[number]
                x, layer_state, weights = layer(x, layer_memory, earlier, shared, number in weights_of)
                states.append(x)
            all_weights.append(weights)
            layer_states.append(layer_state)

        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)  # [B n, T, C]
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        output = DecoderOutput(x, tuple(states), tuple(all_weights))
        if counts is None or keep_state is False:
            return output, None
        return output, DecoderState(tuple(layer_states), counts.steps, end, target_state)

    def embed(self, embeddings: Tensor, padding_mask: Optional[Tensor], places: Tensor, end: int) -> Tensor:
        """Compute the first layer's input [T, B, C] from token embeddings [B, T, C'] (C' may differ from C).

        The order of operations is scaling, word dropout, linear projections, position embeddings, layer norm
        and dropout. Operations disabled by the options are skipped. The padding mask is [B, T]. ``places``
        [B, T] is the index of each token in its sequence, and ``end`` the length so far, including padding.
        """
        x = drop_words(self.embed_scale * embeddings, self.word_dropout_module)
        for module in (self.quant_noise, self.project_in_dim):
            x = x if module is None else module(x)
        positions = self.embed_places(places, padding_mask, end)
        if positions is not None:
            x = x + positions.to(x.dtype)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x).transpose(0, 1)


def linear_without_bias(inputs: int, outputs: int) -> nn.Linear:
    """Build a linear layer without bias, with Xavier uniform weights as in fairseq."""
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.xavier_uniform_(linear.weight)
    return linear
