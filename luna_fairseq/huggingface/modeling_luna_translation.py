"""The Luna translation model (Linear Unified Nested Attention, NeurIPS 2021) for Hugging Face's
transformers."""

from typing import Any, Optional, Tuple, Union

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.modeling_outputs import Seq2SeqLMOutput, Seq2SeqModelOutput

from luna_fairseq.huggingface.configuration_luna import LunaConfig
from luna_fairseq.huggingface.decoder import Generates, LunaCache, LunaDecoder
from luna_fairseq.huggingface.modeling_luna import LunaModel, LunaModelOutput, LunaPreTrainedModel


class LunaEncoderDecoder(LunaPreTrainedModel):
    """Encoder and decoder; one token embedding where they share it. ``config.vocab_size`` is the target's,
    ``config.source_vocab_size`` the source's."""

    def __init__(self, config: LunaConfig):
        super().__init__(config)
        self.encoder = LunaModel(config)
        self.decoder = LunaDecoder(config)
        if config.share_all_embeddings:
            self._tied_weights_keys = {"encoder.embed_tokens.weight": "decoder.embed_tokens.weight"}
        self.post_init()

    def _tie_weights(self) -> None:
        """For transformers 4; 5 reads ``_tied_weights_keys``."""
        if self.config.share_all_embeddings:
            self.encoder.embed_tokens.weight = self.decoder.embed_tokens.weight

    def get_encoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        """For ``generate``."""
        return self.encoder

    def get_decoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        return self.decoder

    def get_input_embeddings(self) -> nn.Module:
        """The target's where the languages have vocabularies of their own."""
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
        **asked: Optional[bool],
    ) -> Union[Seq2SeqModelOutput, Tuple[Any, ...]]:
        """Source as of :class:`LunaModel`, or its output; target as of :class:`LunaDecoder`."""
        wanted = {**asked, "return_dict": True}
        source = encoder_outputs
        if source is None:
            source = self.encoder(input_ids, attention_mask, inputs_embeds=inputs_embeds, **wanted)
        elif not isinstance(source, LunaModelOutput):
            source = LunaModelOutput(*source)
        out = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            inputs_embeds=decoder_inputs_embeds,
            encoder_outputs=source,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **wanted,
        )
        found = Seq2SeqModelOutput(
            last_hidden_state=out.last_hidden_state,
            past_key_values=out.past_key_values,
            decoder_hidden_states=out.hidden_states,
            cross_attentions=out.cross_attentions,
            encoder_last_hidden_state=source.last_hidden_state,
            encoder_hidden_states=source.hidden_states,
            encoder_attentions=source.attentions,
        )
        return found if self.asked(asked)[2] else found.to_tuple()


class LunaForConditionalGeneration(Generates, LunaPreTrainedModel, GenerationMixin):
    """:class:`LunaEncoderDecoder` and an output projection."""

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
        """For ``generate``."""
        return self.luna.encoder

    def get_decoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        return self.luna.decoder

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """What the decoder reads to predict ``labels`` [B, T]: one place later, behind EOS as in fairseq."""
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
        **asked: Optional[bool],
    ) -> Union[Seq2SeqLMOutput, Tuple[Any, ...]]:
        """As of :class:`LunaEncoderDecoder`; labels [B, T], -100 where there is nothing to predict, from
        which the decoder's input is made where it is not given."""
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        source = input_ids, attention_mask
        target = decoder_input_ids, decoder_attention_mask
        others = encoder_outputs, past_key_values, inputs_embeds, decoder_inputs_embeds, use_cache
        out = dict(self.luna(*source, *target, *others, **{**asked, "return_dict": True}))
        logits = self.lm_head(out.pop("last_hidden_state"))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        found = Seq2SeqLMOutput(loss=loss, logits=logits, **out)
        return found if self.asked(asked)[2] else found.to_tuple()
