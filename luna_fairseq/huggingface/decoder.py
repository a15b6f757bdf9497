"""Luna's decoder for transformers, with or without an encoder, and its cache for ``generate``."""

from typing import Any, Dict, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from luna_fairseq.anchored.decoder_attentions import choose_decoder_attentions
from luna_fairseq.huggingface.adapters import (
    TransformersStack,
    batch_first,
    decoder_options,
    token_embedding,
)
from luna_fairseq.huggingface.modeling_luna import ASKED, LunaModelOutput, LunaPreTrainedModel
from luna_fairseq.modules.batch import Source, drop_empty_mask
from luna_fairseq.modules.luna_decoder import LunaDecoder as Decoder
from luna_fairseq.modules.luna_encoder import EncoderOutput
from luna_fairseq.modules.state import DecoderState


class LunaCache:
    """Decoding state of a model. Its size does not depend on the length of the text.

    Each forward pass returns a new cache, so that a caller can continue from one cache several times.

    Attributes:
        state: state of the core's decoder
    """

    is_compileable = False
    is_croppable = False  # a sum over positions cannot be cut

    def __init__(self, state: DecoderState):
        self.state = state

    @property
    def seen(self) -> Tensor:
        """Number of tokens read so far, padding not counted [B]."""
        return self.state.count

    @property
    def length(self) -> int:
        """Number of positions read so far, padding counted."""
        return self.state.position

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of positions read so far, padding counted."""
        return self.length

    def select(self, rows: Tensor) -> "LunaCache":
        """Return the cache of the hypotheses ``rows`` [B'], in the order of ``rows``."""
        return LunaCache(self.state.select(rows))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let hypothesis i continue hypothesis ``beam_idx[i]``, in place."""
        self.state = self.state.select(beam_idx)


class LunaDecoder(TransformersStack, Decoder, LunaPreTrainedModel):
    """The decoder, with or without an encoder."""

    def __init__(self, config: Any):
        LunaPreTrainedModel.__init__(self, config)
        attentions = choose_decoder_attentions(config)
        self.build(decoder_options(config), token_embedding(config, "decoder"), attentions)
        if config.is_encoder_decoder and config.separators:
            attentions.separator = config.separators[1]  # type: ignore[attr-defined]
        self.post_init()

    def forward(  # type: ignore[override]
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
            attention_mask: [B, T], or of all positions so far, 1 at tokens (default: None, all that are not
                padding)
            position_ids: [B, T], 0 at the first token (default: None, tokens are counted and padding is not)
            inputs_embeds: [B, T, C] in place of input_ids (default: None)
            encoder_outputs: what :class:`LunaModel` has returned; None without an encoder
            past_key_values: cache of the call before (default: None, the text begins)
            use_cache: return a cache (default: None, if one was given)

        Raises:
            ValueError: as of :class:`LunaModel`
        """
        states, weights, as_dict = self.asked(asked)
        mask = self.read_tokens(input_ids, inputs_embeds, attention_mask)
        state = None if past_key_values is None else past_key_values.state
        self.check_length(mask.size(1) + (0 if state is None else state.position))
        if self.config.is_encoder_decoder and self.config.separators and input_ids is None:
            raise ValueError("give ids, not vectors: sentences are counted by the separators between them")
        out, state = Decoder.forward(
            self,
            *(input_ids, encoded_source(encoder_outputs), state, inputs_embeds, mask, position_ids),
            keep_state=bool(use_cache) or state is not None,
            weights_of=range(len(self.layers)) if weights else (),
        )
        cache: Any = None if state is None else LunaCache(state)
        found = BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=out.x,
            past_key_values=cache,
            hidden_states=batch_first(out.states) if states else None,
            cross_attentions=batch_first(out.weights) if weights and encoder_outputs is not None else None,
        )
        return found if as_dict else found.to_tuple()


def encoded_source(encoder_outputs: Optional[LunaModelOutput]) -> Optional[EncoderOutput]:
    """Translate the output of :class:`LunaModel`. None stays None."""
    if encoder_outputs is None:
        return None
    numbers = encoder_outputs.source_mask
    padding_mask = drop_empty_mask(numbers.eq(0))
    packed_padding_mask = drop_empty_mask(encoder_outputs.packed_mask.eq(0))
    context, packed = encoder_outputs.last_hidden_state, encoder_outputs.packed
    source = Source(padding_mask, packed_padding_mask, sentence_numbers=numbers)
    return EncoderOutput(context.transpose(0, 1), packed.transpose(0, 1), source)


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
