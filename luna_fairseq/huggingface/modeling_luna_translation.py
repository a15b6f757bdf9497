"""Luna translation model for Hugging Face's transformers.

Luna is Linear Unified Nested Attention (NeurIPS 2021), whose time is linear in the number of tokens. Shapes:
batch size B, S source tokens, T target tokens, V tokens in the target vocabulary, width C.
"""

from typing import Any, Optional, Tuple, Union

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.modeling_outputs import Seq2SeqLMOutput, Seq2SeqModelOutput

from luna_fairseq.huggingface.configuration_luna import LunaConfig
from luna_fairseq.huggingface.decoder import CachedGeneration, LunaCache, LunaDecoder
from luna_fairseq.huggingface.modeling_luna import LunaModel, LunaModelOutput, LunaPreTrainedModel


class LunaEncoderDecoder(LunaPreTrainedModel):
    """Luna encoder and decoder that return hidden states, without an output projection.

    ``config.source_vocab_size`` and ``config.vocab_size`` are the sizes of the source and the target
    vocabulary. With ``config.share_all_embeddings``, the encoder and decoder share one token embedding.
    """

    def __init__(self, config: LunaConfig):
        super().__init__(config)
        self.encoder = LunaModel(config)
        self.decoder = LunaDecoder(config)
        if config.share_all_embeddings:
            self._tied_weights_keys = {"encoder.embed_tokens.weight": "decoder.embed_tokens.weight"}
        self.post_init()

    def _tie_weights(self) -> None:
        """Tie the token embeddings for transformers 4. transformers 5 uses ``_tied_weights_keys``."""
        if self.config.share_all_embeddings:
            self.encoder.embed_tokens.weight = self.decoder.embed_tokens.weight

    def get_encoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        return self.encoder

    def get_decoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        return self.decoder

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.decoder.embed_tokens = value
        if self.config.share_all_embeddings:
            self.encoder.embed_tokens.weight = value.weight

    def forward(
        self,
        input_ids: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
        decoder_input_ids: Optional[Tensor] = None,
        decoder_attention_mask: Optional[Tensor] = None,
        encoder_outputs: Optional[LunaModelOutput] = None,
        past_key_values: Optional[LunaCache] = None,
        inputs_embeds: Optional[Tensor] = None,
        decoder_inputs_embeds: Optional[Tensor] = None,
        use_cache: Optional[bool] = None,
        **output_options: Optional[bool],
    ) -> Union[Seq2SeqModelOutput, Tuple[Any, ...]]:
        """Encode the source, and compute the decoder's hidden states [B, T, C] for the target.

        The result is a Seq2SeqModelOutput, or a tuple of its fields if ``return_dict`` is False.
        :meth:`LunaForConditionalGeneration.forward` describes the arguments.
        """
        options = {**output_options, "return_dict": True}
        source = encoder_outputs
        if source is None:
            source = self.encoder(input_ids, attention_mask, inputs_embeds=inputs_embeds, **options)
        elif isinstance(source, (tuple, list)):
            source = LunaModelOutput(*source)
        out = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            inputs_embeds=decoder_inputs_embeds,
            encoder_outputs=source,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **options,
        )
        output = Seq2SeqModelOutput(
            last_hidden_state=out.last_hidden_state,
            past_key_values=out.past_key_values,
            decoder_hidden_states=out.hidden_states,
            cross_attentions=out.cross_attentions,
            encoder_last_hidden_state=source.last_hidden_state,
            encoder_hidden_states=source.hidden_states,
            encoder_attentions=source.attentions,
        )
        return output if self.resolve_output_options(output_options)[2] else output.to_tuple()


class LunaForConditionalGeneration(CachedGeneration, LunaPreTrainedModel, GenerationMixin):
    """Luna translation model: :class:`LunaEncoderDecoder` and an output projection to the target vocabulary.

    Example:
        >>> import torch
        >>> config = LunaConfig(vocab_size=20, source_vocab_size=30, share_all_embeddings=False,
        ...                     is_encoder_decoder=True, encoder_layers=1, decoder_layers=1, hidden_size=512,
        ...                     encoder_attention_heads=8, encoder_projected_attention_heads=8)
        >>> source, target = torch.tensor([[25, 26, 27]]), torch.tensor([[2, 5]])
        >>> LunaForConditionalGeneration(config)(source, decoder_input_ids=target).logits.shape
        torch.Size([1, 2, 20])
    """

    def __init__(self, config: LunaConfig):
        super().__init__(config)
        self.luna = LunaEncoderDecoder(config)
        self.lm_head = nn.Linear(config.decoder_output_dim, config.vocab_size, bias=False)
        embedding = "luna.decoder.embed_tokens.weight"
        self._tied_weights_keys = {"lm_head.weight": embedding}
        if config.share_all_embeddings:
            self._tied_weights_keys["luna.encoder.embed_tokens.weight"] = embedding
        self.post_init()

    def get_encoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        return self.luna.encoder

    def get_decoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        return self.luna.decoder

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shift labels [B, T] right, prepending ``decoder_start_token_id``, and replace -100 with padding."""
        shifted = labels.roll(1, dims=1)
        shifted[:, 0] = self.config.decoder_start_token_id
        return shifted.masked_fill(shifted.eq(-100), self.config.pad_token_id)

    def forward(
        self,
        input_ids: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
        decoder_input_ids: Optional[Tensor] = None,
        decoder_attention_mask: Optional[Tensor] = None,
        encoder_outputs: Optional[LunaModelOutput] = None,
        past_key_values: Optional[LunaCache] = None,
        inputs_embeds: Optional[Tensor] = None,
        decoder_inputs_embeds: Optional[Tensor] = None,
        labels: Optional[Tensor] = None,
        use_cache: Optional[bool] = None,
        **output_options: Optional[bool],
    ) -> Union[Seq2SeqLMOutput, Tuple[Any, ...]]:
        """Compute logits [B, T, V] of the next target token, and the mean cross-entropy if labels are given.

        Args:
            input_ids: token ids [B, S] of the source.
            attention_mask: source mask [B, S], 1 at tokens and 0 at padding. If None, the padding id is
                masked.
            decoder_input_ids: token ids [B, T] of the target, shifted right. If None, the shifted labels are
                used. If ``past_key_values`` is given, pass only the tokens that follow the cached tokens.
            decoder_attention_mask: target mask [B, T], or [B, cached + T] including the cached positions. If
                None, the padding id is masked.
            encoder_outputs: output of the encoder. If it is given, the encoder does not run.
            past_key_values: cache returned by the preceding call. If None, a new target begins.
            inputs_embeds: input embeddings [B, S, C] of the source in place of ``input_ids``.
            decoder_inputs_embeds: input embeddings [B, T, C] of the target in place of ``decoder_input_ids``.
            labels: target token ids [B, T], -100 at positions to ignore.
            use_cache: return a cache (default: only if ``past_key_values`` is given).
            **output_options: the options of :meth:`LunaModel.forward`.
        """
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        source = input_ids, attention_mask
        target = decoder_input_ids, decoder_attention_mask
        others = encoder_outputs, past_key_values, inputs_embeds, decoder_inputs_embeds, use_cache
        out = dict(self.luna(*source, *target, *others, **{**output_options, "return_dict": True}))
        logits = self.lm_head(out.pop("last_hidden_state"))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        output = Seq2SeqLMOutput(loss=loss, logits=logits, **out)
        return output if self.resolve_output_options(output_options)[2] else output.to_tuple()
