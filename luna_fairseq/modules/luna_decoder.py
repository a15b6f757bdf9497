"""The Luna decoder: fairseq's Transformer decoder, with the encoder's last packed sequence as its P.

Without an encoder it is a language model, and every layer has a P of its own.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules import FairseqDropout
from luna_fairseq.errors import InputError
from luna_fairseq.modules.fairseq_layers import attention_options, finish_layer, use_fairseq_layers
from luna_fairseq.modules.incremental_decoding import IncrementalDecoder, IncrementalLayer
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention
from luna_fairseq.modules.luna_encoder import drop_words, source_of
from luna_fairseq.modules.luna_layer import LunaLayer
from luna_fairseq.modules.no_torchscript import REASON, NoTorchScript
from luna_fairseq.modules.packed_embedding import PackedEmbedding
from luna_fairseq.modules.sentences import IncrementalState, Sentences
from luna_fairseq.ops.attention import in_a_graph


class LunaDecoderLayer(IncrementalLayer, LunaLayer):
    """Luna causal attention through P, Luna attention of X and P to the encoder's output, feed-forward block.

    Without an encoder the second is left out, and P is a parameter of the layer (Luna, section 3.3). In
    decoding fairseq's store keeps the cache of the source, and the sums of causal attention.

    Args:
        self_attn: :class:`LunaCausalAttention`
        encoder_attn: :class:`LunaAttention`; None without an encoder
        packed_embedding: the layer's own P without an encoder; None with one
        embed_dim: C
    """

    def __init__(
        self,
        self_attn: torch.nn.Module,
        encoder_attn: Optional[LunaAttention],
        packed_embedding: Optional[PackedEmbedding],
        embed_dim: int,
    ):
        super().__init__()
        self.self_attn = self_attn
        self.self_attn_layer_norm: torch.nn.Module = torch.nn.LayerNorm(embed_dim)
        self.encoder_attn = encoder_attn
        self.packed_embedding = packed_embedding
        if encoder_attn is not None:
            self.encoder_attn_layer_norm: torch.nn.Module = torch.nn.LayerNorm(embed_dim)
        self.need_attn = True

    def make_generation_fast_(self, need_attn: bool = False, **kwargs: Any) -> None:
        """fairseq-generate says here whether it will print alignments."""
        self.need_attn = need_attn

    def forward(
        self,
        x: Tensor,
        packed: Optional[Tensor],
        context: Optional[Tensor],
        sentences: Sentences,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """
        Args:
            x: [T, B, C]
            packed: P [L, B, C]; None after the first step of decoding, and without an encoder
            context: the encoder's output [S, B, C]; None without an encoder
            sentences: what all layers know of the batch
            need_weights: also return weights over the encoder's output

        Returns:
            x [T, B, C]; the next P [L, B, C] or None; weights [H, B, T, S] or None
        """
        decodes = sentences.incremental_state is not None
        # P enters causal attention as it is, pre-norm or not: the authors' model is defined so.
        y = self.before(self.self_attn_layer_norm, x)
        if decodes:
            y = self.step(y, packed, sentences)
        else:
            if self.packed_embedding is not None:
                packed, _ = self.packed_embedding(x.new_full((x.size(1),), x.size(0)))
            y = self.self_attn(y, packed, sentences.target_padding_mask, sentences.packed_padding_mask)
        x = self.after(self.self_attn_layer_norm, x, y)
        if self.encoder_attn is None:
            return self.feed_forward(x), None, None
        y = self.before(self.encoder_attn_layer_norm, x)
        p = None if packed is None else self.before(self.packed_layer_norm, packed)
        attend = self.attend_with_cache if decodes else self.encoder_attn
        y, packed_context, weights = attend(y, p, context, sentences, need_weights=need_weights)
        x = self.after(self.encoder_attn_layer_norm, x, y)
        packed = self.next_packed(packed, packed_context)
        return self.feed_forward(x), packed, weights


class LunaDecoder(NoTorchScript, IncrementalDecoder, TransformerDecoderBase):
    """N Luna layers over target tokens.

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it
        dictionary: target dictionary
        embed_tokens: token embedding
        no_encoder_attn: there is no encoder (default: False)
    """

    layer_class = LunaDecoderLayer

    def __init__(self, cfg: Any, dictionary: Dictionary, embed_tokens: torch.nn.Embedding, **kwargs: Any):
        self.layers_built = 0
        super().__init__(cfg, dictionary, embed_tokens, **kwargs)
        self.word_dropout_module = FairseqDropout(cfg.word_dropout, module_name="LunaDecoder")
        self.dropout_module.module_name = "LunaDecoder"  # whatever the subclass
        self.attn_in_training = False  # for a criterion that reads it

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> torch.nn.Module:
        # fairseq builds the layers in order and does not say which one it is at.
        self.layers_built += 1
        is_last = self.layers_built == cfg.decoder.layers
        update_packed = not (is_last or cfg.non_contextual_packed)
        noise = {"q_noise": cfg.quant_noise.pq, "qn_block_size": cfg.quant_noise.pq_block_size}
        side = cfg.decoder
        self_attn = use_fairseq_layers(self.build_self_attention(cfg), "LunaCausalAttention", **noise)
        encoder_attn = packed_embedding = None
        if no_encoder_attn:
            options: Any = {"scale": not cfg.no_scale_embedding, "fix_length": True}
            packed_embedding = PackedEmbedding(cfg.projection_length, side.embed_dim, **options)
        else:
            encoder_attn = self.build_encoder_attention(cfg, update_packed)
            use_fairseq_layers(encoder_attn, "LunaAttention", **noise)
        layer = self.layer_class(self_attn, encoder_attn, packed_embedding, side.embed_dim)
        return finish_layer(layer, "LunaDecoderLayer", cfg, update_packed)

    def build_self_attention(self, cfg: Any) -> torch.nn.Module:
        """The causal attention of a layer."""
        return LunaCausalAttention(**self.causal_options(cfg))

    def causal_options(self, cfg: Any) -> Dict[str, Any]:
        """Arguments of causal attention."""
        return {
            "embed_dim": cfg.decoder.embed_dim,
            "num_heads": cfg.decoder.attention_heads,
            "dropout": cfg.attention_dropout,
            "untie_kv": cfg.untie_luna_kv,
            "pack_activation": cfg.pack_activation,
            "backend": cfg.luna_backend,
        }

    def build_encoder_attention(self, cfg: Any, update_packed: bool) -> LunaAttention:
        """The attention of a layer to the encoder's output."""
        return LunaAttention(**attention_options(cfg, cfg.decoder))

    def forward_embedding(
        self, prev_output_tokens: Tensor, incremental_state: Optional[IncrementalState] = None
    ) -> Tensor:
        """Embed ``prev_output_tokens`` [B, T], or only the last of them when decoding. Returns [T, B, C]."""
        tokens, positions = self.new_tokens(prev_output_tokens, incremental_state)
        x = drop_words(self.embed_scale * self.embed_tokens(tokens), self.word_dropout_module)
        for module in (self.quant_noise, self.project_in_dim):
            x = x if module is None else module(x)
        if positions is not None:
            x = x + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x).transpose(0, 1)

    def new_tokens(
        self, prev_output_tokens: Tensor, incremental_state: Optional[IncrementalState]
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """The tokens [B, T] that were not read yet, and their positions [B or 1, T, C], if there are any."""
        positions = None
        if isinstance(self.embed_positions, torch.nn.Embedding):  # sinusoidal ones have no end
            self._check_positions(prev_output_tokens.size(1))
        if self.embed_positions is not None:
            positions = self.embed_positions(prev_output_tokens, incremental_state=incremental_state)
        if incremental_state is None:
            return prev_output_tokens, positions
        return prev_output_tokens[:, -1:], None if positions is None else positions[:, -1:]

    def _check_positions(self, length: int) -> None:
        if length > self.max_positions():
            raise InputError(
                f"a sequence has {length} tokens, the model's positions end at {self.max_positions()}: "
                "shorten it, or train with a larger --max-target-positions"
            )

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[Dict[str, List[Tensor]]] = None,
        incremental_state: Optional[IncrementalState] = None,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
    ) -> Tuple[Tensor, Dict[str, List[Any]]]:
        """
        Args:
            prev_output_tokens: target shifted right [B, T]
            encoder_out: what :class:`LunaEncoder` returned; None without an encoder
            incremental_state: fairseq's store for decoding; the last token alone is new then
            full_context_alignment: must be False, or NotImplementedError is raised: there is no such form
            alignment_layer: the layer whose weights over the source are returned (default: the last)
            alignment_heads: average over the first of its heads only (default: all)

        Returns:
            features [B, T, C], and ``attn`` [weights over source tokens B x T x S, or None], ``inner_states``

        Raises:
            InputError: more tokens than learned positions; torch.jit.trace or torch.export
        """
        if in_a_graph("is_exporting"):
            raise InputError(REASON)
        if full_context_alignment:
            raise NotImplementedError("Luna's causal attention cannot attend to the full target context")
        last_layer = self.num_layers - 1
        context, initial_packed, sentences = source_of(encoder_out, incremental_state)
        if incremental_state is not None:
            self.begin_decoding(incremental_state, prev_output_tokens, context)
        x = self.forward_embedding(prev_output_tokens, incremental_state)
        padding_mask = prev_output_tokens[:, -x.size(0) :].eq(self.padding_idx)
        if padding_mask.any():
            sentences.target_padding_mask = padding_mask
        self.prepare(sentences, prev_output_tokens, context, initial_packed)

        attn = None
        packed = initial_packed
        inner_states = [x]
        for i, layer in enumerate(self.layers):
            if alignment_layer is None:
                wanted = self.attn_in_training if self.training else layer.need_attn
                need_attn = wanted and i == last_layer
            else:
                need_attn = i == alignment_layer
            x, packed, weights = layer(x, packed, context, sentences, need_weights=need_attn)
            if self.cfg.non_contextual_packed:
                packed = initial_packed
            inner_states.append(x)
            attn = weights if weights is not None else attn
        if attn is not None:
            attn = attn[:alignment_heads].mean(dim=0)  # [B, T, S]
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)  # [B, T, C]
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attn], "inner_states": inner_states}

    def prepare(
        self,
        sentences: Sentences,
        prev_output_tokens: Tensor,
        context: Optional[Tensor],
        packed: Optional[Tensor],
    ) -> None:
        """Add to ``sentences`` what layers need to know of the target [B, T], the context [S, B, C] and P
        [L, B, C] before they run: nothing."""
