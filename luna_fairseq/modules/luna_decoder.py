"""The Luna decoder: target tokens go through N Luna layers, with the encoder's last P as their first P.

Without an encoder it is a language model, and every layer has a P of its own. Decoding step by step is the
same
call with a state: ``output, state = decoder(tokens, encoded, state)``.
"""

from typing import Any, Collection, NamedTuple, Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import Source, Target, drop_empty_mask, find_padding, token_places
from luna_fairseq.modules.decoder_attentions import DecoderAttentions
from luna_fairseq.modules.embedding import TokenEmbedding, drop_words
from luna_fairseq.modules.luna_decoder_layer import LunaDecoderLayer
from luna_fairseq.modules.luna_encoder import EncoderOutput
from luna_fairseq.modules.options import DecoderOptions
from luna_fairseq.modules.packed_embedding import PackedEmbedding
from luna_fairseq.modules.state import DecoderState


class DecoderOutput(NamedTuple):
    """Output of a decoder, without the state.

    Attributes:
        x: features [B, T, C]
        states: X [T, B, C] before the first and after every layer
        weights: for every layer, weights over the source [H, B, T, S], or None if they were not asked for
    """

    x: Tensor
    states: Tuple[Tensor, ...]
    weights: Tuple[Optional[Tensor], ...]


class LunaDecoder(TokenEmbedding):
    """N Luna layers over target tokens.

    Args:
        options: sizes and settings
        embed_tokens: token embedding with ``embedding_dim`` and ``padding_idx``
        attentions: what stands in the slots of the layers (default: None, the paper's attentions)
    """

    def __init__(
        self,
        options: DecoderOptions,
        embed_tokens: nn.Module,
        attentions: Optional[DecoderAttentions] = None,
    ):
        super().__init__()
        self.build(options, embed_tokens, attentions)

    def build(
        self, options: DecoderOptions, embed_tokens: nn.Module, attentions: Optional[DecoderAttentions] = None
    ) -> None:
        """Build all parts. A class with a second base calls this method after the constructor of that base;
        arguments as of the class."""
        C, width = options.embed_dim, embed_tokens.embedding_dim
        self.attentions = attentions or DecoderAttentions()
        self.build_embedding(options, embed_tokens)
        self.quant_noise = self.build_embedding_linear()
        self.project_in_dim = None if width == C else linear_without_bias(width, C)
        self.embed_positions = self.build_positions(options, self.padding_idx)
        self.layernorm_embedding = self.build_embedding_norm()
        self.layers = self.build_layers(options)
        has_norm = options.normalize_before and options.final_norm
        self.layer_norm: Optional[nn.Module] = nn.LayerNorm(C) if has_norm else None
        out = options.output_dim
        self.project_out_dim = None if out is None or out == C else linear_without_bias(C, out)

    def build_layers(self, options: DecoderOptions) -> nn.ModuleList:
        """Build the layers in their order."""
        return nn.ModuleList([self.build_layer(options, number) for number in range(options.num_layers)])

    def build_layer(self, options: DecoderOptions, number: int) -> nn.Module:
        """Build layer ``number``, from 0."""
        is_last = number == options.num_layers - 1
        update_packed = not (is_last or options.non_contextual_packed)
        self_attn = self.attentions.build_causal_attention(options)
        encoder_attn = packed_embedding = None
        if options.has_encoder:
            encoder_attn = self.attentions.build_cross_attention(options, update_packed)
        else:
            packed_embedding = PackedEmbedding(
                options.projection_length, options.embed_dim, scale=options.scale_embedding, fix_length=True
            )
        return LunaDecoderLayer(options, self_attn, encoder_attn, packed_embedding, update_packed)

    def run_layer(self, layer: nn.Module, *inputs: Any) -> Tuple[Any, ...]:
        """Call a layer."""
        return layer(*inputs)

    def forward(
        self,
        tokens: Optional[Tensor] = None,
        encoded: Optional[EncoderOutput] = None,
        state: Optional[DecoderState] = None,
        embeddings: Optional[Tensor] = None,
        padding_mask: Optional[Tensor] = None,
        places: Optional[Tensor] = None,
        keep_state: Optional[bool] = None,
        weights_of: Collection[int] = (),
    ) -> Tuple[DecoderOutput, Optional[DecoderState]]:
        """Read the target, or the next of its tokens.

        Args:
            tokens: the target shifted right [B n, T], padded on either side; with a ``state`` its next tokens
                alone. n rows that follow one another share one of the B sentences of the source
            encoded: what the encoder has returned; None without an encoder
            state: what the call before this one has returned (default: None, the target begins)
            embeddings: [B n, T, C], vectors in place of the token embedding's (default: None)
            padding_mask: [B n, T], True at padding (default: None, where ``tokens`` is the padding index)
            places: [B n, T], number of each token, from 0 (default: None, tokens are counted and padding is
                not)
            keep_state: return the state after these tokens (default: None, if a ``state`` was given)
            weights_of: numbers of the layers whose weights over the source are returned (default: none)

        Returns:
            the output, and the state or None

        Raises:
            InputError: the state is the state of a model with another number of layers
        """
        if embeddings is None:
            embeddings = self.embed_tokens(tokens)
        if padding_mask is None:
            padding_mask = find_padding(tokens, self.padding_idx)
        keep_state = state is not None if keep_state is None else keep_state
        before = (None,) * len(self.layers) if state is None else state.layers
        if len(before) != len(self.layers):
            raise InputError(f"the state has {len(before)} layers, the decoder {len(self.layers)}")
        count, end = (None, 0) if state is None else (state.count, state.position)
        end += embeddings.size(1)
        counted = token_places(padding_mask, count)
        x = self.embed(embeddings, padding_mask, counted if places is None else places, end)
        context, first, source = (None, None, Source()) if encoded is None else encoded[:3]
        if any(layer is not None and layer.memory is not None for layer in before[:1]):
            first = None  # the source was packed before
        target = Target(padding_mask, counted, tokens)
        seen = None if state is None else state.target
        geometry, seen = self.attentions.find_geometry(context, first, source, target, seen)
        mask = drop_empty_mask(padding_mask)

        packed = first
        states, all_weights, kept = [x], [], []
        for number, layer in enumerate(self.layers):
            x, packed, weights, after = self.run_layer(
                *(layer, x, packed, context, source, mask),
                *(before[number], geometry, keep_state, number in weights_of),
            )
            if self.options.non_contextual_packed:
                packed = first
            states.append(x)
            all_weights.append(weights)
            kept.append(after)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)  # [B n, T, C]
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        output = DecoderOutput(x, tuple(states), tuple(all_weights))
        if not keep_state:
            return output, None
        real = (~padding_mask).sum(dim=1)
        return output, DecoderState(tuple(kept), real if count is None else count + real, end, seen)

    def embed(self, embeddings: Tensor, padding_mask: Tensor, places: Tensor, end: int) -> Tensor:
        """Turn token vectors [B, T, C'] into what the first layer reads [T, B, C].

        Args:
            embeddings: vectors of the token embedding, whose width C' may differ from C
            padding_mask: [B, T], True at padding
            places: [B, T], number of each token in its sequence, from 0
            end: length of the sequences so far, padding included
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
    """Build a linear map [.., inputs] -> [.., outputs] without bias, initialised as fairseq does."""
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.xavier_uniform_(linear.weight)
    return linear
