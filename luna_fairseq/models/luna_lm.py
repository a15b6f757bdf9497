"""The Luna causal language model: a Luna decoder without encoder (Luna, section 3.3), and its
architectures."""

from argparse import Namespace
from typing import Any, Optional

from torch import Tensor

from fairseq.models import FairseqLanguageModel, register_model
from fairseq.models.transformer import Embedding
from fairseq.utils import safe_getattr
from luna_fairseq.anchored.encoder_decoder import decoder_class
from luna_fairseq.models.architectures import Presets, register_architectures
from luna_fairseq.models.bases import LoadsWhatFits
from luna_fairseq.models.generator_hub import LanguageModelHub, from_pretrained
from luna_fairseq.models.luna import flat_options, nested_config
from luna_fairseq.models.luna_lm_config import LunaLanguageModelConfig
from luna_fairseq.models.stream import Stream, reading_segments

# fairseq's, for tasks that know no length.
DEFAULT_POSITIONS = 1024


@register_model("luna_lm", dataclass=LunaLanguageModelConfig)
class LunaLanguageModel(LoadsWhatFits, FairseqLanguageModel):
    """Luna causal attention and feed-forward layers; decoding step by step keeps a state of constant size.

    ``LunaLanguageModel.from_pretrained(dir, checkpoint_file, data, bpe=..)`` gives fairseq's generator
    interface, with :meth:`luna_fairseq.models.generator_hub.LanguageModelHub.read`.
    """

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """See :func:`luna_fairseq.models.generator_hub.from_pretrained`."""
        return from_pretrained(*args, hub=LanguageModelHub, **kwargs)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        stream: Optional[Stream] = None,
        keep_after: Optional[int] = None,
        **kwargs: Any,
    ) -> Any:
        """fairseq's. With a ``stream`` the tokens [B, T] go on where that stands, and it stands after them
        then, or after ``keep_after`` of them."""
        if stream is None:
            return super().forward(src_tokens, src_lengths=src_lengths, **kwargs)
        return stream.read(self.decoder, src_tokens, keep_after)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "LunaLanguageModel":
        """Build the model for the dictionaries of ``task``; ``cfg`` is flat, as
        :class:`LunaLanguageModelConfig` is.

        Raises:
            InputError: widths, heads or projection length that cannot be
        """
        options = flat_options(cfg, LunaLanguageModelConfig())
        if options["decoder_layers_to_keep"]:
            options["decoder_layers"] = len(options["decoder_layers_to_keep"].split(","))
        # Options that are the task's are references to it, which only reading them from ``cfg`` follows.
        lengths = [safe_getattr(cfg, name, None) for name in ("max_target_positions", "tokens_per_sample")]
        options["max_target_positions"] = next(filter(None, lengths), DEFAULT_POSITIONS)
        nested = nested_config(Namespace(**options))
        dictionary = task.source_dictionary
        embed_tokens = Embedding(len(dictionary), nested.decoder.input_dim, dictionary.pad())
        build = reading_segments(decoder_class(nested))
        return cls(build(nested, task.target_dictionary, embed_tokens, no_encoder_attn=True))


# What each architecture sets apart from LunaLanguageModelConfig's defaults.
ARCHITECTURES: Presets = {
    "luna_lm": {},
    "luna_lm_small": {
        "projection_length": 16,
        "decoder_layers": 4,
        "decoder_embed_dim": 256,
        "decoder_ffn_embed_dim": 1024,
        "decoder_attention_heads": 4,
        "share_decoder_input_output_embed": True,
    },
    "luna_lm_big": {
        "decoder_layers": 12,
        "decoder_embed_dim": 1024,
        "decoder_ffn_embed_dim": 4096,
        "decoder_attention_heads": 16,
        "decoder_normalize_before": True,
    },
}
register_architectures("luna_lm", ARCHITECTURES)
