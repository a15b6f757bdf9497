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

from luna_fairseq.anchored.encoder_attentions import choose_encoder_attentions
from luna_fairseq.anchored.sentence_places import sentence_numbers
from luna_fairseq.anchored.strengths import LearnedStrength, LookupGate
from luna_fairseq.huggingface.adapters import (
    TransformersStack,
    activation,
    batch_first,
    encoder_options,
    token_embedding,
)
from luna_fairseq.huggingface.configuration_luna import LunaConfig
from luna_fairseq.modules.embedding import sinusoidal_table
from luna_fairseq.modules.luna_encoder import LunaEncoder
from luna_fairseq.modules.packed_embedding import PackedEmbedding


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


class LunaModel(TransformersStack, LunaEncoder, LunaPreTrainedModel):
    """The encoder.

    A model without a decoder (``config.is_encoder_decoder``) normalises the last P in the encoder, with gain
    and bias if ``config.packed_is_read``, and rows of P that are padding begin as zeros.
    ``config.layer_repeats``: the one layer is applied so many times.
    """

    def __init__(self, config: LunaConfig):
        LunaPreTrainedModel.__init__(self, config)
        attentions = choose_encoder_attentions(config)
        self.build(encoder_options(config), token_embedding(config, "encoder"), attentions)
        self.post_init()

    def forward(  # type: ignore[override]
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
            attention_mask: [B, T], 1 at tokens (default: None, all that are not padding)
            position_ids: [B, T], 0 at the first token (default: None, tokens are counted and padding is not)
            inputs_embeds: [B, T, C] in place of input_ids (default: None)

        Raises:
            ValueError: none of input_ids and inputs_embeds, or both; a sequence longer than the positions
        """
        states, weights, as_dict = self.asked(asked)
        mask = self.read_tokens(input_ids, inputs_embeds, attention_mask)
        self.check_length(mask.size(1))
        out = LunaEncoder.forward(
            self, input_ids, inputs_embeds, mask, position_ids, return_states=states, need_weights=weights
        )
        packed, masked = out.packed.transpose(0, 1), out.source.packed_padding_mask
        rows = torch.ones_like(packed[..., 0], dtype=torch.long) if masked is None else (~masked).long()
        numbers = (~mask).long()
        if getattr(self.config, "separators", None):
            if input_ids is None:
                raise ValueError(
                    "give ids, not vectors: sentences are counted by the separators between them"
                )
            numbers = sentence_numbers(input_ids.eq(self.config.separators[0]) & ~mask, mask)
        found = LunaModelOutput(
            out.x.transpose(0, 1),
            packed,
            rows,
            numbers,
            batch_first(out.states) if states else None,
            batch_first(out.weights) if weights else None,
        )
        return found if as_dict else found.to_tuple()


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
