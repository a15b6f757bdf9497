"""The Luna causal language model (Linear Unified Nested Attention, NeurIPS 2021) for Hugging Face's
transformers."""

from typing import Any, Optional, Tuple, Union

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from luna_fairseq.huggingface.configuration_luna import LunaDecoderConfig
from luna_fairseq.huggingface.decoder import Generates, LunaCache, LunaDecoder
from luna_fairseq.huggingface.modeling_luna import LunaPreTrainedModel


class LunaForCausalLM(Generates, LunaPreTrainedModel, GenerationMixin):
    """A decoder without encoder, and an output projection."""

    config_class = LunaDecoderConfig
    _tied_weights_keys = {"lm_head.weight": "luna.embed_tokens.weight"}

    def __init__(self, config: LunaDecoderConfig):
        super().__init__(config)
        self.luna = LunaDecoder(config)
        self.lm_head = nn.Linear(config.decoder_output_dim, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
        position_ids: Optional[Tensor] = None,
        inputs_embeds: Optional[Tensor] = None,
        past_key_values: Optional[LunaCache] = None,
        labels: Optional[Tensor] = None,
        use_cache: Optional[bool] = None,
        **asked: Optional[bool],
    ) -> Union[CausalLMOutputWithPast, Tuple[Any, ...]]:
        """As :meth:`LunaDecoder.forward`; labels [B, T], the tokens themselves, -100 where there is nothing
        to predict."""
        out = self.luna(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **{**asked, "return_dict": True},
        )
        logits = self.lm_head(out.last_hidden_state)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        found = CausalLMOutputWithPast(loss, logits, out.past_key_values, out.hidden_states)
        return found if self.asked(asked)[2] else found.to_tuple()
