"""Luna causal language model for Hugging Face's transformers.

Luna is Linear Unified Nested Attention (NeurIPS 2021), whose time is linear in the number of tokens. Shapes:
batch size B, T tokens, V tokens in the vocabulary.
"""

from typing import Any, Optional, Tuple, Union

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from luna_fairseq.huggingface.configuration_luna import LunaDecoderConfig
from luna_fairseq.huggingface.decoder import CachedGeneration, LunaCache, LunaDecoder
from luna_fairseq.huggingface.modeling_luna import LunaPreTrainedModel


class LunaForCausalLM(CachedGeneration, LunaPreTrainedModel, GenerationMixin):
    """Luna causal language model: a decoder-only model with an output projection.

    Example:
        >>> import torch
        >>> config = LunaDecoderConfig(vocab_size=20, num_hidden_layers=1)
        >>> LunaForCausalLM(config)(torch.tensor([[4, 5, 6]])).logits.shape
        torch.Size([1, 3, 20])
    """

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
        **output_options: Optional[bool],
    ) -> Union[CausalLMOutputWithPast, Tuple[Any, ...]]:
        """Compute the logits [B, T, V] of the next token, and the mean cross-entropy if labels are given.

        Args:
            input_ids: token ids [B, T]. If ``past_key_values`` is given, pass only the tokens that follow the
                cached tokens.
            attention_mask: mask [B, T], or [B, cached + T] including the cached positions, 1 at tokens and 0
                at padding. If None, the padding id is masked.
            position_ids: position [B, T] of each token. If None, counted from 0, skipping padding.
            inputs_embeds: input embeddings [B, T, embedding width] in place of ``input_ids``.
            past_key_values: cache returned by the preceding call. If None, a new text begins.
            labels: token ids [B, T], usually ``input_ids``, with -100 at positions to ignore. The model
                shifts them.
            use_cache: return a cache (default: only if ``past_key_values`` is given).
            **output_options: the options of :meth:`LunaModel.forward`.
        """
        out = self.luna(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **{**output_options, "return_dict": True},
        )
        logits = self.lm_head(out.last_hidden_state)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        output = CausalLMOutputWithPast(loss, logits, out.past_key_values, out.hidden_states)
        return output if self.resolve_output_options(output_options)[2] else output.to_tuple()
