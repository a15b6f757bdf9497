"""Luna decoder: token embedding and a stack of Luna layers, for translation and language modeling.

In translation, the first layer receives the last packed sequence P of the encoder. A language model has no
encoder, and each layer has a learned P. To decode step by step, pass the returned state to the next call:
``output, state = decoder(tokens, encoded, state)``.
"""

from typing import Any, Collection, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import Source, Target, drop_empty_mask, find_padding, token_places
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.decoder_attentions import DecoderAttentions
from luna_fairseq.modules.embedding import TokenEmbedding, drop_words
from luna_fairseq.modules.luna_decoder_layer import LunaDecoderLayer
from luna_fairseq.modules.luna_encoder import EncoderOutput
from luna_fairseq.modules.options import DecoderOptions
from luna_fairseq.modules.packed_embedding import PackedEmbedding
from luna_fairseq.modules.state import DecoderState
from luna_fairseq.ops.causal_luna import TokenCounts


class DecoderOutput(NamedTuple):
    """Output features, hidden states and attention weights of a decoder.

    Shapes: T target tokens, S source tokens, batch size B, model width C, H heads.

    Attributes:
        x: output features [B, T, C].
        states: hidden states before the first layer and after each layer, each [T, B, C].
        weights: attention weights [H, B, T, S] over the source for each layer (None for layers whose weights
            were not requested).
    """

    x: Tensor
    states: Tuple[Tensor, ...]
    weights: Tuple[Optional[Tensor], ...]


class LunaDecoder(TokenEmbedding):
    """Luna decoder, which computes features of target tokens, either for whole sequences or step by step.

    Args:
        options: decoder options.
        embed_tokens: token embedding with the attributes ``embedding_dim`` and ``padding_idx``.
        attentions: factory that builds the attention modules of the layers (default: None, the attention
            modules of the Luna paper).

    Example:
        >>> import torch
        >>> from luna_fairseq.modules import DecoderOptions
        >>> sizes = {"embed_dim": 64, "ffn_embed_dim": 128, "num_layers": 2, "num_heads": 8}
        >>> options = DecoderOptions(**sizes, has_encoder=False)
        >>> decoder = LunaDecoder(options, torch.nn.Embedding(100, 64, padding_idx=1))
        >>> tokens = torch.randint(2, 100, (4, 20))
        >>> output, state = decoder(tokens[:, :10], keep_state=True)
        >>> output, state = decoder(tokens[:, 10:11], state=state)
        >>> output.x.shape, state.position
        (torch.Size([4, 1, 64]), 11)
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
        self,
        options: DecoderOptions,
        embed_tokens: nn.Module,
        attentions: Optional[DecoderAttentions] = None,
        builders: Builders = TORCH,
    ) -> None:
        """Build the embedding, the layers and the output projection of the decoder.

        The constructor calls this method. A subclass with an additional base class, such as a fairseq
        decoder, calls it after the constructor of that base class.
        """
        C, width = options.embed_dim, embed_tokens.embedding_dim
        self.attentions = attentions or DecoderAttentions()
        self.build_embedding(options, embed_tokens, "LunaDecoder", builders)
        self.quant_noise: Optional[nn.Module] = None
        if options.linear_embedding:
            self.quant_noise = builders.linear(nn.Linear(C, C, bias=False))
        self.project_in_dim = None if width == C else linear_without_bias(width, C)
        self.embed_positions = builders.positions(options, self.padding_idx)
        self.layernorm_embedding = builders.norm(C) if options.layernorm_embedding else None
        self.layers = self.build_layers(options)
        has_norm = options.normalize_before and options.final_norm
        self.layer_norm: Optional[nn.Module] = nn.LayerNorm(C) if has_norm else None
        out = options.output_dim
        self.project_out_dim = None if out is None or out == C else linear_without_bias(C, out)

    def build_layers(self, options: DecoderOptions) -> nn.ModuleList:
        """Build the ``options.num_layers`` decoder layers.

        Args:
            options: decoder options.

        Returns:
            The layers, from first to last.
        """
        return nn.ModuleList([self.build_layer(options, number) for number in range(options.num_layers)])

    def build_layer(self, options: DecoderOptions, number: int) -> nn.Module:
        """Build one decoder layer with its attention modules.

        Args:
            options: decoder options.
            number: zero-based layer index.

        Returns:
            The layer, a :class:`LunaDecoderLayer`.
        """
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
        """Call a layer and return its outputs.

        Subclasses can override this method, for example to recompute activations in the backward pass.

        Args:
            layer: layer to call.
            *inputs: positional arguments of the layer.

        Returns:
            Outputs of the layer.
        """
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
        """Compute the output features of whole target sequences, or of the next tokens after a state.

        Shapes: T target tokens, width C' of the token embedding, B source sentences with n hypotheses each.
        The hypotheses (candidate translations in beam search) of a sentence are adjacent in the batch; n is 1
        in training.

        Args:
            tokens: target token ids [B * n, T], shifted right, with padding on the left or right. If
                ``state`` is given, only the next tokens (default: None, ``embeddings`` is given).
            encoded: encoder output (default: None, the decoder has no encoder).
            state: state returned by the previous call (default: None, this call starts at the beginning of
                the target).
            embeddings: token embeddings [B * n, T, C'], used instead of embedding ``tokens`` (default: None).
            padding_mask: boolean mask [B * n, T], True at padding (default: None, derived from the padding
                token).
            places: index [B * n, T] of each token in its sequence, for position embeddings (default: None,
                zero-based indices, not counting padding).
            keep_state: return the state after these tokens (default: None, True if ``state`` is given).
            weights_of: indices of the layers whose attention weights over the source are returned (default:
                none).

        Returns:
            Tuple of the :class:`DecoderOutput`, with output features [B * n, T, C], and the state after these
            tokens (None if ``keep_state`` is False).

        Raises:
            InputError: ``state`` belongs to a decoder with a different number of layers, or neither
                ``tokens`` nor ``padding_mask`` was passed.
        """
        if embeddings is None:
            embeddings = self.embed_tokens(tokens)
        if padding_mask is None:
            padding_mask = find_padding(tokens, self.padding_idx)
        keep_state = state is not None if keep_state is None else keep_state
        layer_states = (None,) * len(self.layers) if state is None else state.layers
        if len(layer_states) != len(self.layers):
            raise InputError(
                f"Expected a state of {len(self.layers)} layers, got {len(layer_states)} layers. "
                "Pass the state that this decoder returned"
            )

        count, end = (None, 0) if state is None else (state.count, state.position)
        end += embeddings.size(1)
        mask = drop_empty_mask(padding_mask)
        counted_places = token_places(padding_mask, count, has_padding=mask is not None)
        x = self.embed(embeddings, mask, counted_places if places is None else places, end)

        context, first_packed, source = (None, None, Source()) if encoded is None else encoded[:3]
        if any(layer is not None and layer.memory is not None for layer in layer_states[:1]):
            first_packed = None  # An earlier step has packed the source.
        target = Target(padding_mask, counted_places, tokens)
        target_state = None if state is None else state.target
        geometry, target_state = self.attentions.find_geometry(
            context, first_packed, source, target, target_state
        )
        counts = None
        if keep_state:
            T, hypotheses, _ = x.shape
            before = torch.zeros(hypotheses, dtype=torch.long, device=x.device) if count is None else count
            counts = TokenCounts.compute(before, T, mask, x.dtype)

        packed = first_packed
        states, all_weights, next_layer_states = [x], [], []
        for number, layer in enumerate(self.layers):
            x, packed, weights, next_layer_state = self.run_layer(
                *(layer, x, packed, context, source, mask),
                *(layer_states[number], geometry, keep_state, number in weights_of, counts),
            )
            if self.options.non_contextual_packed:
                packed = first_packed
            states.append(x)
            all_weights.append(weights)
            next_layer_states.append(next_layer_state)

        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)  # [B n, T, C]
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        output = DecoderOutput(x, tuple(states), tuple(all_weights))
        if counts is None:
            return output, None
        return output, DecoderState(tuple(next_layer_states), counts.steps, end, target_state)

    def embed(self, embeddings: Tensor, padding_mask: Optional[Tensor], places: Tensor, end: int) -> Tensor:
        """Compute the input of the first layer from token embeddings.

        The order of operations is scaling, word dropout, linear projections, position embeddings, layer norm
        and dropout. Operations disabled by the options are skipped.

        Shapes: T tokens, batch size B, width C' of the token embedding, model width C.

        Args:
            embeddings: token embeddings [B, T, C'].
            padding_mask: boolean mask [B, T], True at padding, or None if there is no padding.
            places: zero-based index [B, T] of each token in its sequence.
            end: length of the sequences so far, including padding.

        Returns:
            Input [T, B, C] of the first layer.
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
    """Build a linear layer without bias, with Xavier uniform weights as in fairseq.

    Args:
        inputs: number of input features.
        outputs: number of output features.

    Returns:
        The initialized layer.
    """
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.xavier_uniform_(linear.weight)
    return linear
