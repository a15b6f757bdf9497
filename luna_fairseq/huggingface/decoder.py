"""Luna decoder for Hugging Face's transformers, and its cache for ``generate``.

A causal language model consists of the decoder alone. Shapes: batch size B, T tokens, width C.
"""

from typing import Any, Dict, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from luna_fairseq.anchored.factories import choose_decoder_attentions
from luna_fairseq.huggingface.adapters import (
    BUILDERS,
    TransformersStack,
    build_token_embedding,
    decoder_options,
    to_batch_first,
)
from luna_fairseq.huggingface.modeling_luna import LunaModelOutput, LunaPreTrainedModel, require_input_ids
from luna_fairseq.modules.batch import Source, drop_empty_mask
from luna_fairseq.modules.luna_decoder import LunaDecoder as Decoder
from luna_fairseq.modules.luna_encoder import EncoderOutput
from luna_fairseq.modules.memory import DecoderMemory, DecoderState


class LunaCache:
    """Cache of a Luna decoder, passed to the model as ``past_key_values``.

    The cache contains weighted sums of the keys and values of all earlier positions, so its size does not
    depend on the text length. A forward pass returns a new cache and leaves the given cache unchanged.

    Attributes:
        memory: cached tensors that every decoding step reads, computed from the encoder output or, in a
            language model, from the learned packed sequence P.
        state: weighted sums over the earlier positions, and the number of these positions.
        is_reordered: True after beam search. The hypotheses are then not those of the returned sequences.
    """

    is_reordered = False
    is_compileable = False
    # The state consists of sums over all positions, from which individual positions cannot be removed.
    is_croppable = False

    def __init__(self, memory: DecoderMemory, state: DecoderState):
        self.memory, self.state = memory, state

    @property
    def seen(self) -> Tensor:
        """Vector with the number of cached tokens per hypothesis, excluding padding."""
        return self.state.count

    @property
    def length(self) -> int:
        """Number of cached positions, including padding."""
        return self.state.position

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of cached positions, including padding, as :class:`transformers.Cache` does."""
        return self.length

    def select(self, indices: Tensor) -> "LunaCache":
        """Return a new cache with the hypotheses at the given indices, in this order."""
        return LunaCache(self.memory.select_sources(indices), self.state.reorder(indices))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the hypotheses in place: beam i continues hypothesis ``beam_idx[i]``."""
        selected = self.select(beam_idx)
        self.memory, self.state = selected.memory, selected.state
        self.is_reordered = True


class LunaDecoder(TransformersStack, Decoder, LunaPreTrainedModel):
    """Luna decoder that returns hidden states, without an output projection.

    With ``config.is_encoder_decoder``, the decoder has cross-attention to the source. To use other attention
    modules, set ``choose_attentions`` in a subclass, a function ``(config, options) -> attention factory``.

    Example:
        >>> from luna_fairseq.huggingface.configuration_luna import LunaDecoderConfig
        >>> decoder = LunaDecoder(LunaDecoderConfig(vocab_size=20, num_hidden_layers=1)).eval()
        >>> output = decoder(torch.tensor([[4, 5, 6]]), use_cache=True)
        >>> output.last_hidden_state.shape, output.past_key_values.length
        (torch.Size([1, 3, 512]), 3)
    """

    choose_attentions = staticmethod(choose_decoder_attentions)

    def __init__(self, config: Any):
        options = decoder_options(config)
        embed_tokens = build_token_embedding(config, "decoder")
        attentions = self.choose_attentions(config, options)
        super().__init__(options, embed_tokens, attentions, BUILDERS, config=config)
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
        **output_options: Optional[bool],
    ) -> Union[BaseModelOutputWithPastAndCrossAttentions, Tuple[Any, ...]]:
        """Compute the hidden states [B, T, C] of a text, or of the T tokens that follow the cached text.

        ``encoder_outputs`` is the output of :class:`LunaModel`. :meth:`LunaForCausalLM.forward` describes the
        other arguments. ``output_attentions`` returns the weights of cross-attention only.
        """
        states, weights, as_dict = self.resolve_output_options(output_options)
        padding = self.compute_padding_mask(input_ids, inputs_embeds, attention_mask)
        state = _cached_state(past_key_values)
        if self.config.is_encoder_decoder and self.config.separators:
            require_input_ids(input_ids)
        keep_state, weights_of = (
            bool(use_cache) or state is not None,
            range(len(self.layers) if weights else 0),
        )
        if past_key_values is None:
            memory = self.read(to_core_output(encoder_outputs), keep_state, weights_of)
        else:
            memory = past_key_values.memory
        out, state = super().forward(
            input_ids,
            memory,
            state,
            embeddings=inputs_embeds,
            padding_mask=padding,
            places=position_ids,
            keep_state=keep_state,
            weights_of=weights_of,
        )
        cache: Any = None if state is None else LunaCache(memory, state)
        output = BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=out.x,
            past_key_values=cache,
            hidden_states=to_batch_first(out.states) if states else None,
            cross_attentions=to_batch_first(out.weights) if weights and encoder_outputs is not None else None,
        )
        return output if as_dict else output.to_tuple()


def to_core_output(encoder_outputs: Optional[LunaModelOutput]) -> Optional[EncoderOutput]:
    """Convert the exported encoder's output [B, T, C] to an ``EncoderOutput`` [T, B, C]. None stays None."""
    if encoder_outputs is None:
        return None
    source_mask = encoder_outputs.source_mask
    padding_mask = drop_empty_mask(source_mask.eq(0))
    packed_padding_mask = drop_empty_mask(encoder_outputs.packed_mask.eq(0))
    context, packed = encoder_outputs.last_hidden_state, encoder_outputs.packed
    source = Source(padding_mask, packed_padding_mask, sentence_numbers=source_mask)
    return EncoderOutput(context.transpose(0, 1), packed.transpose(0, 1), source)


# transformers 4.40 does not let a model generate if the name of this class contains "GenerationMixin".
class CachedGeneration(nn.Module):
    """Mixin for models with an ``lm_head`` that makes transformers' ``generate`` use :class:`LunaCache`."""

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
        """Return the arguments of the next forward pass, which starts after the cached positions.

        ``input_ids`` [B, T] are the ids of the whole text. If a language model's attention mask covers the
        whole text, ``input_ids`` may begin after the cached positions. ``inputs_embeds`` [B, T, C] are the
        embeddings of a language model's prompt.
        """
        has_source = self.config.is_encoder_decoder
        names = ["use_cache", "output_hidden_states", "output_attentions"]
        if has_source:
            names += ["attention_mask", "encoder_outputs"]
        inputs = {name: kwargs[name] for name in names if kwargs.get(name) is not None}
        prefix = "decoder_" if has_source else ""
        mask = kwargs.get(f"{prefix}attention_mask")
        use_embeds = inputs_embeds is not None and not has_source
        use_embeds = use_embeds and (past_key_values is None or input_ids.size(1) == 0)
        tokens: Any = inputs_embeds if use_embeds else input_ids
        _cached_state(past_key_values)
        if past_key_values is not None:
            position_ids = kwargs.get(f"{prefix}position_ids")
            # The first one that is given covers the whole text.
            whole = next(x for x in (position_ids, mask, tokens) if x is not None)
            tokens = _drop_cached(tokens, whole.size(1), past_key_values.length)
            past_key_values = _repeat_for_beams(past_key_values, tokens.size(0))
        if mask is not None:
            mask = mask[:, -tokens.size(1) :]
            if not use_embeds:
                # generate pads finished hypotheses but does not update its mask.
                mask = mask * tokens.ne(self.config.pad_token_id)
            inputs[f"{prefix}attention_mask"] = mask
        inputs["inputs_embeds" if use_embeds else f"{prefix}input_ids"] = tokens
        return {**inputs, "past_key_values": past_key_values}

    def _get_initial_cache_position(self, *inputs: Any) -> Dict[str, Any]:
        """Return the last of ``inputs``, the arguments of ``generate``, with ``cache_position`` added.

        transformers 4 requires these positions of the prompt, but cannot compute them from a LunaCache.
        """
        cache = inputs[-1].pop("past_key_values", None)
        given = super()._get_initial_cache_position(*inputs)
        return {**given, "past_key_values": cache}

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: Dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Prevent ``generate`` from creating its own cache, because the first forward pass creates one.

        Raises ValueError for a cache that beam search returned.
        """
        if getattr(model_kwargs.get("past_key_values"), "is_reordered", False):
            raise ValueError(
                "Expected past_key_values of greedy search or sampling, got those of a beam search, which do "
                "not belong to the returned sequences. Pass None."
            )

    def _reorder_cache(self, past_key_values: LunaCache, beam_idx: Tensor) -> LunaCache:
        past_key_values.reorder_cache(beam_idx)
        return past_key_values


def _cached_state(cache: Any) -> Optional[DecoderState]:
    """Return the decoding state of a cache, or None without a cache.

    Raises TypeError for another model's cache.
    """
    if cache is None or isinstance(cache, LunaCache):
        return None if cache is None else cache.state
    raise TypeError(
        f"Expected past_key_values of a Luna model, got {type(cache).__name__}. Pass None for a new text, or "
        "past_key_values of the preceding call."
    )


def _drop_cached(tokens: Tensor, length: int, cached: int) -> Tensor:
    """Return the token ids [B, T], or embeddings [B, T, C], that follow the cached positions of a text.

    The text has ``length`` positions, of which ``cached`` are cached. Raises ValueError if no token follows,
    or if ``tokens`` does not include all new tokens.
    """
    new = length - cached
    if not 1 <= new <= tokens.size(1):
        raise ValueError(
            f"Expected the tokens after the {cached} positions in past_key_values, got {tokens.size(1)} of a "
            f"text of {length}. Pass the ids of the whole text, with at least one after the cache."
        )
    return tokens[:, -new:]


def _repeat_for_beams(cache: LunaCache, num_hypotheses: int) -> LunaCache:
    """Expand a cache to ``num_hypotheses`` hypotheses by repeating each hypothesis consecutively."""
    size = cache.seen.size(0)
    if size == num_hypotheses:
        return cache
    if num_hypotheses % size:
        raise ValueError(
            f"Expected past_key_values of {num_hypotheses} sequences, got {size}. Pass the cache of this "
            "batch."
        )
    indices = torch.arange(size, device=cache.seen.device)
    return cache.select(indices.repeat_interleave(num_hypotheses // size))
