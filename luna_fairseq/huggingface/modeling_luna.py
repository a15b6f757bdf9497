"""Luna's encoder (Linear Unified Nested Attention, NeurIPS 2021) for Hugging Face's transformers, and the
masked language model.

Shapes: B batch, T tokens, L rows of P, C width, V vocabulary. Layers are time-first, what goes in and comes
out batch-first.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Tuple, Type, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils import ModelOutput

from luna_fairseq.anchored.sentence_places import sentence_numbers
from luna_fairseq.anchored.strengths import LearnedStrength, LookupGate
from luna_fairseq.huggingface.configuration_luna import LunaConfig
from luna_fairseq.huggingface.layers import (
    Embedding,
    LunaEncoderLayer,
    activation,
    places_of,
    separators_in,
    sinusoidal_table,
)
from luna_fairseq.modules.packed_embedding import PackedEmbedding
from luna_fairseq.modules.sentences import Sentences


@dataclass
class LunaModelOutput(ModelOutput):
    """last_hidden_state [B, T, C]; the last P, normalised: packed [B, L, C]; packed_mask [B, L] and
    source_mask [B, T], 1 at rows and at tokens that count (with ``config.separators`` at tokens the number
    of their sentence, from 1); hidden_states, if asked for, after the embedding and after every layer;
    attentions, if asked for, of every layer over the sequence [B, H, T, T]."""

    # Always there; transformers asks for a default of all.
    last_hidden_state: Tensor = None
    packed: Tensor = None
    packed_mask: Tensor = None
    source_mask: Tensor = None
    hidden_states: Optional[Tuple[Tensor, ...]] = None
    attentions: Optional[Tuple[Tensor, ...]] = None


# What every call may be asked for besides its inputs.
ASKED = ("output_hidden_states", "output_attentions", "return_dict")


class LunaPreTrainedModel(PreTrainedModel):
    """What transformers asks of every model: its configuration, its initialisation, its options of a call."""

    config_class: Type[PretrainedConfig] = LunaConfig
    base_model_prefix = "luna"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False
    _no_split_modules = ["LunaEncoderLayer", "LunaDecoderLayer"]

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Write the model to a folder, as transformers does, with the model's code beside it.

        Some versions of transformers copy the configuration's code alone, and the folder could not be loaded.
        """
        super().save_pretrained(save_directory, *args, **kwargs)
        code = Path(str(sys.modules[type(self).__module__].__file__))
        if code.parent.name == "huggingface" and code.parent.parent.name == "luna_fairseq":
            return  # not loaded from an exported folder: the export writes the code
        for file in code.parent.glob("*.py"):
            if file.name != "__init__.py" and not (Path(save_directory) / file.name).exists():
                shutil.copyfile(str(file), str(Path(save_directory) / file.name))

    def _init_weights(self, module: nn.Module) -> None:
        """BERT's initialisation; and what is computed, where a model was made on the meta device."""
        if isinstance(module, (nn.Linear, nn.Embedding, PackedEmbedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
            if getattr(module, "padding_idx", None) is not None:
                nn.init.zeros_(module.weight[module.padding_idx])
            if getattr(module, "positions", None) is not None:
                with torch.no_grad():
                    module.positions.copy_(sinusoidal_table(*module.positions.shape))
        elif isinstance(module, (LearnedStrength, LookupGate)):
            module.reset_parameters()
        elif isinstance(module, nn.LayerNorm) and module.elementwise_affine:
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)

    def asked(self, given: Dict[str, Optional[bool]]) -> Tuple[bool, ...]:
        """output_hidden_states, output_attentions and return_dict, from the configuration where they are not
        given. Raises TypeError for another argument."""
        unknown = sorted(set(given) - set(ASKED))
        if unknown:
            raise TypeError(f"{type(self).__name__} got an unexpected keyword argument {unknown[0]!r}")
        values = ((name, given.get(name)) for name in ASKED)
        return tuple(bool(getattr(self.config, name) if value is None else value) for name, value in values)


class LunaModel(Embedding, LunaPreTrainedModel):
    """The encoder.

    A model without a decoder (``config.is_encoder_decoder``) normalises the last P in the encoder, with gain
    and bias if ``config.packed_is_read``, and rows of P that are left out begin as zeros.
    ``config.layer_repeats``: the one layer is applied so many times.
    """

    def __init__(self, config: LunaConfig):
        super().__init__(config)
        C, N = config.encoder_embed_dim, config.encoder_layers
        alone, pre_norm = not config.is_encoder_decoder, config.encoder_normalize_before
        self.repeats = getattr(config, "layer_repeats", 1)
        self.build_embedding(config, "encoder", config.max_source_positions)
        sinusoidal = not (config.no_token_positional_embeddings or config.encoder_learned_pos)
        self.packed_embedding = PackedEmbedding(
            config.projection_length,
            C,
            dropout=config.dropout,
            scale=not config.no_scale_embedding,
            positions=sinusoidal_table if sinusoidal else None,
            layer_norm=config.layernorm_embedding,
            fix_length=config.fix_projection_length,
            zero_padding=alone,
        )
        last_norm = alone and not (self.repeats > 1 and not pre_norm)
        self.layers = nn.ModuleList(
            [LunaEncoderLayer(config, not last_norm or number < N - 1) for number in range(N)]
        )
        self.layer_norm = nn.LayerNorm(C) if pre_norm else None
        self.packed_layer_norm = None
        if last_norm or (pre_norm and not alone and not config.non_contextual_packed):
            affine = config.packed_is_read or not alone
            self.packed_layer_norm = nn.LayerNorm(C, elementwise_affine=affine)
        self.post_init()

    def forward(
        self,
        input_ids: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
        position_ids: Optional[Tensor] = None,
        inputs_embeds: Optional[Tensor] = None,
        **asked: Optional[bool],
    ) -> Union[LunaModelOutput, Tuple[Any, ...]]:
        """
        Args:
            input_ids: [B, T]
            attention_mask: [B, T], 1 at tokens (default: all that are not padding)
            position_ids: [B, T], 0 at the first token (default: tokens are counted, padding is not)
            inputs_embeds: [B, T, C] in place of input_ids

        Raises:
            ValueError: none of input_ids and inputs_embeds, or both; a sequence longer than the positions
        """
        states, weights, as_dict = self.asked(asked)
        embedding, mask = self.read_tokens(input_ids, inputs_embeds, attention_mask)
        self.check_length(embedding.size(1))
        x = self.embed(embedding, mask, places_of(mask) if position_ids is None else position_ids)
        x = x.masked_fill(~mask.t().unsqueeze(-1), 0.0)
        first, left_out = self.packed_embedding(mask.sum(dim=1))
        sentences, numbers = Sentences(~mask, left_out), None
        if getattr(self.config, "separators", None):
            numbers = sentence_numbers(separators_in(input_ids, self.config.separators[0]) & mask, ~mask)
        packed = first
        hidden_states, attentions = [x.transpose(0, 1)], []
        for layer in [layer for _ in range(self.repeats) for layer in self.layers]:
            x = hidden_states[-1].transpose(0, 1)  # so that gradients pass what is handed out
            x, packed, of_layer = layer(x, packed, sentences, weights)
            packed = first if packed is None else packed
            hidden_states.append(x.transpose(0, 1))
            attentions.append(of_layer)
        x = hidden_states[-1].transpose(0, 1)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        if self.packed_layer_norm is not None:
            packed = self.packed_layer_norm(packed)
        packed = packed.transpose(0, 1)
        kept = torch.ones_like(packed[..., 0], dtype=torch.bool) if left_out is None else ~left_out
        out = LunaModelOutput(
            x.transpose(0, 1),
            packed,
            kept.long(),
            mask.long() if numbers is None else numbers,
            tuple(hidden_states) if states else None,
            tuple(weight.transpose(0, 1) for weight in attentions) if weights else None,
        )
        return out if as_dict else out.to_tuple()


class LunaLMHead(nn.Module):
    """RoBERTa's."""

    def __init__(self, config: LunaConfig):
        super().__init__()
        C = config.encoder_embed_dim
        self.dense = nn.Linear(C, C)
        self.activation = activation(config.activation_fn)
        self.layer_norm = nn.LayerNorm(C)
        self.decoder = nn.Linear(C, config.vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [.., V] of features [.., C]."""
        return self.decoder(self.layer_norm(self.activation(self.dense(x))))


class LunaForMaskedLM(LunaPreTrainedModel):
    """The encoder with RoBERTa's LM head."""

    _tied_weights_keys = {"lm_head.decoder.weight": "luna.embed_tokens.weight"}

    def __init__(self, config: LunaConfig):
        super().__init__(config)
        self.luna = LunaModel(config)
        self.lm_head = LunaLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head.decoder

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head.decoder = value

    def forward(
        self,
        input_ids: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
        position_ids: Optional[Tensor] = None,
        inputs_embeds: Optional[Tensor] = None,
        labels: Optional[Tensor] = None,
        **asked: Optional[bool],
    ) -> Union[MaskedLMOutput, Tuple[Any, ...]]:
        """As :meth:`LunaModel.forward`; labels [B, T], -100 where there is nothing to predict."""
        of_encoder = input_ids, attention_mask, position_ids, inputs_embeds
        out = self.luna(*of_encoder, **{**asked, "return_dict": True})
        logits = self.lm_head(out.last_hidden_state)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        found = MaskedLMOutput(loss, logits, out.hidden_states, out.attentions)
        return found if self.asked(asked)[2] else found.to_tuple()
