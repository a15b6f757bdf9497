"""A Luna model with an attention and an option of its own, for fairseq's --user-dir.

Attention to the source divides its logits by a temperature. The model is trained like any other:

    fairseq-train data-bin/en-de --user-dir examples/own_attention --arch luna_temperature --temperature 2 ...
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from fairseq.models import register_model
from luna_fairseq.models import LunaModel
from luna_fairseq.models.fairseq_decoder import FairseqLunaDecoder
from luna_fairseq.models.luna_config import LunaConfig
from luna_fairseq.models.options import option
from luna_fairseq.modules import DecoderAttentions, DecoderOptions, LunaAttention
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.luna_attention import attention_arguments


class TemperatureAttention(LunaAttention):
    """Luna attention whose unpack logits are divided by a temperature.

    The other arguments are those of :class:`LunaAttention`.
    """

    absorbs_queries = False  # implementations that absorb the queries would leave out the temperature

    def __init__(self, temperature: float, **arguments: Any):
        super().__init__(**arguments)
        self.temperature = temperature

    def attend_to_rows(self, q: Tensor, *arguments: Any) -> Any:
        return super().attend_to_rows(q / self.temperature, *arguments)


@dataclass(frozen=True)
class TemperatureAttentions(DecoderAttentions):
    """Factory of a decoder's attentions, with :class:`TemperatureAttention` to the source."""

    temperature: float = 1.0

    def build_cross_attention(self, update_packed: bool, builders: Builders = TORCH) -> nn.Module:
        return TemperatureAttention(self.temperature, **attention_arguments(self.options, builders))


@dataclass
class TemperatureConfig(LunaConfig):
    """Options of the model: Luna's, and the temperature."""

    temperature: float = option(2.0, "temperature of unpack attention to the source", above=0)


def choose_attentions(cfg: Any, options: DecoderOptions) -> TemperatureAttentions:
    """Return the factory of the attentions for fairseq's configuration ``cfg``."""
    return TemperatureAttentions(options, cfg.temperature)


@register_model("luna_temperature", dataclass=TemperatureConfig)
class TemperatureModel(LunaModel):
    """Luna translation model whose decoder attends to the source with a temperature."""

    decoder_class = staticmethod(partial(FairseqLunaDecoder, choose_attentions=choose_attentions))
