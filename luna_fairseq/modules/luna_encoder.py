"""Luna encoder: token embedding, learned initial packed sequence P, and a stack of Luna layers."""

from dataclasses import dataclass
from typing import Any, ClassVar, Iterator, NamedTuple, Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.modules.batch import Geometry, Source, drop_empty_mask, find_padding, token_places
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.embedding import PackedEmbedding, TokenEmbedding, drop_words
from luna_fairseq.modules.luna_attention import LunaAttention, attention_arguments
from luna_fairseq.modules.luna_layer import LunaEncoderLayer
from luna_fairseq.modules.options import SINUSOIDAL, EncoderOptions


class EncoderOutput(NamedTuple):
    """Output of an encoder, passed to a decoder.

    Shapes: S tokens, L rows of the packed sequence P, batch size B, width C, H heads. The last three fields
    are empty if not requested. If the layers are applied several times (``EncoderOptions.layer_repeats``),
    every application of a layer has its own entry.

    Attributes:
        x: output features [S, B, C].
        packed: P [L, B, C] after the last layer.
        source: padding masks of the output features and of P.
        states: input features [S, B, C], then the features after each layer, before the final layer norm.
        packed_states: initial P [L, B, C], then P after each layer, before its final layer norm.
        weights: self-attention weights [H, B, S, S] of each layer.
    """

    x: Tensor
    packed: Tensor
    source: Source
    states: Tuple[Tensor, ...] = ()
    packed_states: Tuple[Tensor, ...] = ()
    weights: Tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class EncoderAttentions:
    """Factory that builds the attention modules of an encoder, by default as in the Luna paper.

    To build other modules, a subclass overrides :meth:`build_attention`. If the attention weights depend on
    token positions, the subclass must also set ``needs_geometry`` and override
    :meth:`find_source_geometry`.

    Attributes:
        options: encoder options.
    """

    options: EncoderOptions
    needs_geometry: ClassVar[bool] = False

    def build_attention(self, builders: Builders = TORCH) -> nn.Module:
        """Build the self-attention of one layer."""
        return LunaAttention(**attention_arguments(self.options, builders))

    def find_source_geometry(self, context: Tensor, packed: Tensor, source: Source) -> Optional[Geometry]:
        """Return the token positions on which attention weights depend, as a :class:`Geometry`.

        ``context`` [S, B, C] is the input of the first layer, and ``packed`` [L, B, C] the initial P.
        """
        raise NotImplementedError


class LunaEncoder(TokenEmbedding):
    """Luna encoder, which computes token features and a packed sequence P of fixed length.

    Args:
        options: encoder options.
        embed_tokens: token embedding of width ``options.embed_dim``, with the attribute ``padding_idx``.
        attentions: factory that builds the attention modules of the layers (default: as in the paper).
        builders: functions that build dropout, layer norms, linear layers and positions, and wrap the layers
            (default: torch's modules, and no wrapper).
        **base: constructor arguments of a second base class, if a subclass has one.

    Example:
        >>> import torch
        >>> from luna_fairseq.modules import EncoderOptions
        >>> options = EncoderOptions(embed_dim=64, ffn_embed_dim=128, num_layers=2, num_heads=8)
        >>> encoder = LunaEncoder(options, torch.nn.Embedding(100, 64, padding_idx=1))
        >>> encoded = encoder(torch.randint(2, 100, (4, 50)))
        >>> encoded.x.shape, encoded.packed.shape
        (torch.Size([50, 4, 64]), torch.Size([32, 4, 64]))
    """

    def __init__(
        self,
        options: EncoderOptions,
        embed_tokens: nn.Module,
        attentions: Optional[EncoderAttentions] = None,
        builders: Builders = TORCH,
        **base: Any,
    ):
        super().__init__(options, embed_tokens, "LunaEncoder", builders, **base)
        C = options.embed_dim
        self.attentions = attentions or EncoderAttentions(options)
        # The order of construction is the order of the parameters in a checkpoint.
        self.embed_positions = builders.positions(options, self.padding_idx)
        self.layernorm_embedding = builders.norm(C) if options.layernorm_embedding else None
        # A linear projection, named as in fairseq, which applies quantization noise to its weight.
        self.quant_noise: Optional[nn.Module] = None
        if options.linear_embedding:
            self.quant_noise = builders.linear(nn.Linear(C, C, bias=False))
        self.layers = builders.layers(self._build_layers(options, builders))
        self.layer_repeats = options.layer_repeats  # number of times that the same layers are applied
        self.layer_norm: Optional[nn.Module] = builders.norm(C) if options.normalize_before else None
        self.packed_embedding = PackedEmbedding(
            options.projection_length,
            C,
            dropout=options.dropout,
            scale=options.scale_embedding,
            positions=builders.packed_positions if options.positions == SINUSOIDAL else None,
            layer_norm=options.layernorm_embedding,
            fix_length=options.fix_projection_length,
            zero_padding=options.sentence_encoder,
            has_fixed_shape=options.fixed_shapes,
            builders=builders,
        )
        self.packed_layer_norm: Optional[nn.Module] = None
        if options.normalizes_last_packed:
            # A sentence encoder. Parameters that no classification head trains would break distributed
            # training, so the norm has none if P is not read.
            self.packed_layer_norm = builders.norm(C, elementwise_affine=options.packed_is_read)
        elif options.normalize_before and not (options.sentence_encoder or options.non_contextual_packed):
            # Pre-norm layers pass on sums that are not normalized, and the decoder reads the last of them.
            self.packed_layer_norm = builders.norm(C)

    def _build_layers(self, options: EncoderOptions, builders: Builders) -> Iterator[nn.Module]:
        """Yield the encoder layers one by one, so that each can be wrapped before the next one is built."""
        for number in range(options.num_layers):
            is_last = number == options.num_layers - 1
            attention = self.attentions.build_attention(builders)
            normalize_packed = not (is_last and options.normalizes_last_packed)
            yield LunaEncoderLayer(options, attention, normalize_packed, builders)

    def forward(
        self,
        tokens: Optional[Tensor] = None,
        embeddings: Optional[Tensor] = None,
        padding_mask: Optional[Tensor] = None,
        places: Optional[Tensor] = None,
        return_states: bool = False,
        need_weights: bool = False,
        num_outputs: Optional[int] = None,
    ) -> EncoderOutput:
        """Encode a batch of token sequences.

        Shapes: batch size B, S tokens, width C.

        Args:
            tokens: token ids [B, S], with padding on the left or right. None if ``embeddings`` is given.
            embeddings: token embeddings [B, S, C], used instead of embedding ``tokens``.
            padding_mask: boolean mask [B, S], True at padding (default: derived from the padding token).
            places: index [B, S] of each token in its sequence, for position embeddings (default: zero-based
                indices, not counting padding).
            return_states: also return the features and the packed sequence P before the first layer and after
                each layer.
            need_weights: also return the self-attention weights.
            num_outputs: number T of leading tokens whose output features are computed (default: None, all S).
                A classifier that reads only the first token passes 1, which saves most of the last layer.

        Returns:
            :class:`EncoderOutput` with the output features [T, B, C], the final P [L, B, C] and the padding
            masks of the S tokens and of P.

        Raises:
            InputError: Neither ``tokens`` nor ``padding_mask`` was passed.
        """
        if embeddings is None:
            embeddings = self.embed_tokens(tokens)
        if padding_mask is None:
            padding_mask = find_padding(tokens, self.padding_idx)
        places = token_places(padding_mask) if places is None else places
        x = self.embed(embeddings, padding_mask, places)
        mask = drop_empty_mask(padding_mask)
        if mask is not None:
            x = x.masked_fill(mask.unsqueeze(-1), 0.0)
        x = x.transpose(0, 1)  # [S, B, C]
        first_packed, packed_padding_mask = self.packed_embedding((~padding_mask).sum(dim=1), x.size(0))
        source = Source(mask, packed_padding_mask)
        geometry = None
        if self.attentions.needs_geometry:
            geometry = self.attentions.find_source_geometry(x, first_packed, source)

        packed = first_packed
        states, packed_states, all_weights = [x], [packed], []
        layers = [layer for _ in range(self.layer_repeats) for layer in self.layers]
        for number, layer in enumerate(layers, start=1):
            outputs = num_outputs if number == len(layers) else None
            x, packed, weights = layer(x, packed, source, geometry, need_weights, outputs)
            packed = first_packed if packed is None else packed  # None: not updated
            states.append(x)
            packed_states.append(packed)
            all_weights.append(weights)

        if self.layer_norm is not None:
            x = self.layer_norm(x)
        if self.packed_layer_norm is not None:
            packed = self.packed_layer_norm(packed)
        output = EncoderOutput(x, packed, source)
        if return_states:
            output = output._replace(states=tuple(states), packed_states=tuple(packed_states))
        return output._replace(weights=tuple(all_weights)) if need_weights else output

    def embed(self, embeddings: Tensor, padding_mask: Tensor, places: Tensor) -> Tensor:
        """Compute the input [B, S, C] of the first layer from token embeddings [B, S, C].

        The order of operations is word dropout, scaling, position embeddings, layer norm, dropout and the
        linear projection. Operations disabled by the options are skipped. The padding mask is [B, S], and
        ``places`` [B, S] is the index of each token in its sequence.
        """
        x = self.embed_scale * drop_words(embeddings, self.word_dropout_module)
        positions = self.embed_places(places, padding_mask, x.size(1))
        if positions is not None:
            x = x + positions.to(x.dtype)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x)
        return x if self.quant_noise is None else self.quant_noise(x)
