"""Luna's decoder for transformers, with or without an encoder, and its cache for ``generate``."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from luna_fairseq.anchored.attention import QUERY_ORIGIN, QUERY_PLACE
from luna_fairseq.anchored.causal import DecayingCausalAttention
from luna_fairseq.anchored.sentence_places import Begun, origins, within_sentences
from luna_fairseq.anchored.softmax_cross import cross_attention
from luna_fairseq.huggingface.layers import (
    Embedding,
    GradientCheckpointingLayer,
    attention_options,
    feed_forward_options,
    places_of,
    separators_in,
)
from luna_fairseq.huggingface.modeling_luna import ASKED, LunaModelOutput, LunaPreTrainedModel
from luna_fairseq.modules.causal_state import LunaCausalState
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention
from luna_fairseq.modules.luna_layer import LunaLayer
from luna_fairseq.modules.packed_embedding import PackedEmbedding
from luna_fairseq.modules.sentences import Sentences


class LayerState(NamedTuple):
    """Decoding state of one layer: the sums of causal attention, and the packed source if there is one."""

    causal: LunaCausalState
    source: Any = None

    def select(self, rows: Tensor) -> "LayerState":
        """Return the state of the hypotheses ``rows`` [B'], in the order of ``rows``."""
        causal = self.causal.reorder(rows).select(rows)
        return LayerState(causal, None if self.source is None else self.source.select(rows))


class LunaCache:
    """Decoding state of all layers. Its size does not depend on the length of the text.

    Each forward pass returns a new cache, so that a caller can continue from one cache several times.

    Attributes:
        layers: state of each layer
        seen: number of tokens read so far, padding not counted [B]
        length: number of positions read so far, padding counted
        begun: current sentence of each text, if the model counts sentences
    """

    is_compileable = False
    is_croppable = False  # a sum over positions cannot be cut

    def __init__(self, layers: List[LayerState], seen: Tensor, length: int, begun: Optional[Begun] = None):
        self.layers, self.seen, self.length, self.begun = layers, seen, length, begun

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of positions read so far."""
        return self.length

    def select(self, rows: Tensor) -> "LunaCache":
        """Return the cache of the hypotheses ``rows`` [B'], in the order of ``rows``."""
        begun = None if self.begun is None else self.begun.select(rows)
        layers = [layer.select(rows) for layer in self.layers]
        return LunaCache(layers, self.seen.index_select(0, rows), self.length, begun)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let hypothesis i continue hypothesis ``beam_idx[i]``, in place."""
        vars(self).update(vars(self.select(beam_idx)))


class LunaDecoderLayer(GradientCheckpointingLayer, LunaLayer):
    """Luna causal attention through P, Luna attention of X and P to the source, the feed-forward block."""

    encoder_attn: Any  # one of three attentions; None without an encoder

    def __init__(self, config: Any, is_last: bool):
        super().__init__()
        C = config.decoder_embed_dim
        build = DecayingCausalAttention if config.causal_decay else LunaCausalAttention
        self.self_attn = build(
            C,
            config.decoder_attention_heads,
            dropout=config.attention_dropout,
            untie_kv=config.untie_luna_kv,
            pack_activation=config.pack_activation,
        )
        self.self_attn_layer_norm = nn.LayerNorm(C)
        self.build_feed_forward(**feed_forward_options(config, "decoder"))
        self.packed_embedding = self.encoder_attn = None
        if config.is_encoder_decoder:
            update_packed = not (is_last or config.non_contextual_packed)
            options = attention_options(config, "decoder")
            self.encoder_attn = cross_attention(config, options, update_packed)
            self.encoder_attn_layer_norm = nn.LayerNorm(C)
            if self.encoder_attn.packs:
                self.build_packed_layer_norm(C, update_packed)
        else:
            scale = not config.no_scale_embedding
            self.packed_embedding = PackedEmbedding(config.projection_length, C, scale=scale, fix_length=True)

    def forward(
        self,
        x: Tensor,
        packed: Optional[Tensor],
        context: Optional[Tensor],
        sentences: Sentences,
        state: Optional[LayerState] = None,
        keeps: bool = False,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor], Optional[LayerState]]:
        """
        Args:
            x: [T, B, C]
            packed: P [L, B, C]; None without a source, and where there is a state
            context: the source [S, B, C]; None without an encoder
            sentences: their masks, and the places of the tokens
            state: what the positions before these left
            keeps: return a state
            need_weights: return weights over the source [H, B, T, S]

        Returns:
            X; the next P or None; weights or None; the state or None
        """
        y, p = self.before(self.self_attn_layer_norm, x), packed
        if self.packed_embedding is not None and state is None:
            p, _ = self.packed_embedding(x.new_full((x.size(1),), x.size(0)))
        masks = sentences.target_padding_mask, sentences.packed_padding_mask
        kept = None
        if keeps:
            y, causal = self.self_attn.step(y, p, None if state is None else state.causal, *masks)
            kept = LayerState(causal)
        else:
            y = self.self_attn(y, p, *masks)
        x = self.after(self.self_attn_layer_norm, x, y)
        if context is None:
            return self.feed_forward(x), None, None, kept
        y = self.before(self.encoder_attn_layer_norm, x)
        p = None if packed is None else self.before(self.packed_layer_norm, packed)
        packed_context, cache = None, None if state is None else state.source
        if cache is None:
            packed_context, pack_weights = self.encoder_attn.pack(p, context, sentences, need_weights)
            cache = self.encoder_attn.cache(packed_context, pack_weights, context, sentences)
        y, weights = self.encoder_attn.unpack(y, cache, sentences, need_weights)
        x = self.after(self.encoder_attn_layer_norm, x, y)
        packed = self.next_packed(packed, packed_context)
        if kept is not None:
            kept = kept._replace(source=cache)
        return self.feed_forward(x), packed, weights, kept


class LunaDecoder(Embedding, LunaPreTrainedModel):
    """Embedding, layers, and the last norm."""

    def __init__(self, config: Any):
        super().__init__(config)
        C, N = config.decoder_embed_dim, config.decoder_layers
        self.build_embedding(config, "decoder", config.max_target_positions)
        self.layers = nn.ModuleList([LunaDecoderLayer(config, number == N - 1) for number in range(N)])
        last_norm = config.decoder_normalize_before and not config.no_decoder_final_norm
        self.layer_norm = nn.LayerNorm(C) if last_norm else None
        out = config.decoder_output_dim
        self.project_out_dim = None if out == C else nn.Linear(C, out, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
        position_ids: Optional[Tensor] = None,
        inputs_embeds: Optional[Tensor] = None,
        encoder_outputs: Optional[LunaModelOutput] = None,
        past_key_values: Optional[LunaCache] = None,
        use_cache: Optional[bool] = None,
        **asked: Optional[bool],
    ) -> Union[BaseModelOutputWithPastAndCrossAttentions, Tuple[Any, ...]]:
        """
        Args:
            input_ids: [B, T], all tokens so far or those after ``past_key_values``
            attention_mask: [B, T], or of all positions so far, 1 at tokens (default: all that are not
                padding)
            position_ids: [B, T], 0 at the first token (default: tokens are counted, padding is not)
            inputs_embeds: [B, T, C] in place of input_ids
            encoder_outputs: of :class:`LunaModel`, where there is a source
            past_key_values: of the call before
            use_cache: return one

        Raises:
            ValueError: as of :class:`LunaModel`
        """
        states, weights, as_dict = self.asked(asked)
        keeps = bool(use_cache) or past_key_values is not None
        x, mask = self.read_tokens(input_ids, inputs_embeds, attention_mask)
        seen, length = 0, mask.size(1)
        if past_key_values is not None:
            seen, length = past_key_values.seen[:, None], past_key_values.length + length
        self.check_length(length)
        places = places_of(mask, seen)
        seen = seen + mask.sum(dim=1, keepdim=True)
        x = self.embed(x, mask, places if position_ids is None else position_ids)
        context, first, sentences = self.read(encoder_outputs)
        sentences.target_padding_mask = ~mask
        sentences.shared[QUERY_PLACE], begun = places, None
        if encoder_outputs is not None and self.config.separators:
            begins = separators_in(input_ids, self.config.separators[1]) & mask
            before = None if past_key_values is None else past_key_values.begun
            sentences.shared[QUERY_PLACE], sentence, begun = within_sentences(places, begins, before)
            sentences.shared[QUERY_ORIGIN] = origins(sentence, encoder_outputs.source_mask)
        first = first if past_key_values is None else None
        packed = first
        hidden_states, attentions, kept = [x.transpose(0, 1)], [], []
        for number, layer in enumerate(self.layers):
            state = None if past_key_values is None else past_key_values.layers[number]
            x = hidden_states[-1].transpose(0, 1)  # so that gradients pass what is handed out
            x, packed, of_layer, state = layer(x, packed, context, sentences, state, keeps, weights)
            if self.config.non_contextual_packed:
                packed = first
            hidden_states.append(x.transpose(0, 1))
            attentions.append(None if of_layer is None else of_layer.transpose(0, 1))
            kept.append(state)
        x = hidden_states[-1].transpose(0, 1)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x.transpose(0, 1)).transpose(0, 1)
        cache: Any = LunaCache(kept, seen[:, 0], length, begun) if keeps else None
        out = BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=x.transpose(0, 1),
            past_key_values=cache,
            hidden_states=tuple(hidden_states) if states else None,
            cross_attentions=tuple(attentions) if weights and context is not None else None,
        )
        return out if as_dict else out.to_tuple()

    def read(
        self, encoder_outputs: Optional[LunaModelOutput]
    ) -> Tuple[Optional[Tensor], Optional[Tensor], Sentences]:
        """The source [S, B, C], P [L, B, C], and their masks."""
        if encoder_outputs is None:
            return None, None, Sentences()
        masks = (mask.eq(0) for mask in (encoder_outputs.source_mask, encoder_outputs.packed_mask))
        context, packed = encoder_outputs.last_hidden_state, encoder_outputs.packed
        return context.transpose(0, 1), packed.transpose(0, 1), Sentences(*masks)


class Generates(nn.Module):
    """Methods that ``generate`` calls on a model with a :class:`LunaCache` and a layer ``lm_head``."""

    _is_stateful = True

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Optional[LunaCache] = None,
        inputs_embeds: Optional[Tensor] = None,
        **kwargs: Any,
    ) -> Dict[str, Any]:
        """Return the arguments of the next forward pass: the positions beyond the cache.

        Args:
            input_ids: all tokens of the text [B, T], or of its translation. In a language model they may be
                the new tokens alone, if the attention mask covers the whole text.
            past_key_values: cache of the first positions, with B rows or with one row for each group of beams
            inputs_embeds: vectors [B, T, C] in place of the first tokens of a language model
            kwargs: all other arguments that ``generate`` carries from step to step

        Raises:
            ValueError: no position lies beyond the cache
        """
        with_source = self.config.is_encoder_decoder
        names = ["use_cache", *ASKED[:2], *(["attention_mask", "encoder_outputs"] if with_source else [])]
        inputs = {name: kwargs[name] for name in names if kwargs.get(name) is not None}
        side = "decoder_" if with_source else ""
        mask = kwargs.get(f"{side}attention_mask")
        use_embeds = inputs_embeds is not None and not with_source
        use_embeds = use_embeds and (past_key_values is None or input_ids.size(1) == 0)
        rows: Any = inputs_embeds if use_embeds else input_ids
        if past_key_values is not None:
            places = kwargs.get(f"{side}position_ids")
            whole = next((x for x in (places, mask) if x is not None), rows)
            new = whole.size(1) - past_key_values.length
            if not 1 <= new <= rows.size(1):
                raise ValueError(
                    f"past_key_values holds {past_key_values.length} positions, the text has {whole.size(1)} "
                    f"and {rows.size(1)} of them were given. Give the ids of the whole text, with at least "
                    "one beyond the cache."
                )
            rows = rows[:, -new:]
            past_key_values = _expand_rows(past_key_values, rows.size(0))
        if mask is not None:
            mask = mask[:, -rows.size(1) :]
            # A text that has ended is padded while others go on, which generate's mask does not say.
            inputs[f"{side}attention_mask"] = mask if use_embeds else mask * rows.ne(self.config.pad_token_id)
        inputs["inputs_embeds" if use_embeds else f"{side}input_ids"] = rows
        return {**inputs, "past_key_values": past_key_values}

    def _prepare_cache_for_generation(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the first forward pass creates the cache."""

    def _reorder_cache(self, past_key_values: LunaCache, beam_idx: Tensor) -> LunaCache:
        past_key_values.reorder_cache(beam_idx)
        return past_key_values


def _expand_rows(cache: LunaCache, rows: int) -> LunaCache:
    """Return a cache of ``rows`` hypotheses, in which each row of ``cache`` is repeated for its beams."""
    own = cache.seen.size(0)
    if own == rows:
        return cache
    if rows % own:
        raise ValueError(f"past_key_values has {own} rows, the batch has {rows}: give a cache of this batch")
    return cache.select(torch.arange(own, device=cache.seen.device).repeat_interleave(rows // own))
