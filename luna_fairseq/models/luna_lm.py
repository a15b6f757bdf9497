"""The Luna causal language model: a Luna decoder without encoder (Luna, section 3.3), and its
architectures."""

from argparse import Namespace
from typing import Any, Optional, Type

from torch import Tensor

from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel, register_model
from fairseq.models.transformer import DEFAULT_MAX_TARGET_POSITIONS, Embedding, TransformerConfig
from fairseq.modules import AdaptiveInput
from fairseq.utils import eval_str_list, safe_getattr
from luna_fairseq.errors import InputError
from luna_fairseq.models.architectures import Presets, register_architectures
from luna_fairseq.models.bases import LoadsWhatFits
from luna_fairseq.models.fairseq_decoder import FairseqLunaDecoder
from luna_fairseq.models.generator_hub import LanguageModelHub, from_pretrained
from luna_fairseq.models.luna import flat_options, nested_config
from luna_fairseq.models.luna_lm_config import LanguageModelOptions, LunaLanguageModelConfig
from luna_fairseq.models.stream import Stream


class LanguageModel(LoadsWhatFits, FairseqLanguageModel):
    """fairseq's Transformer language model with another decoder."""

    config_class: Type[LanguageModelOptions]

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "LanguageModel":
        """Build the model for the dictionaries of ``task``; ``cfg`` is flat, as :attr:`config_class` is.

        Raises:
            InputError: widths, heads, options of attention or cutoffs that cannot be
        """
        options = flat_options(cfg, cls.config_class())
        if options["decoder_layers_to_keep"]:
            options["decoder_layers"] = len(options["decoder_layers_to_keep"].split(","))
        # Options that are the task's are references to it, which only reading them from ``cfg`` follows.
        lengths = [safe_getattr(cfg, name, None) for name in ("max_target_positions", "tokens_per_sample")]
        options["max_target_positions"] = next(filter(None, lengths), DEFAULT_MAX_TARGET_POSITIONS)
        nested = nested_config(Namespace(**options))
        dictionary = task.source_dictionary
        if nested.adaptive_input:
            embed_tokens = adaptive_input(nested, dictionary)
        else:
            embed_tokens = Embedding(len(dictionary), nested.decoder.input_dim, dictionary.pad())
        build = cls.choose_decoder_class(nested)
        return cls(build(nested, task.target_dictionary, embed_tokens, no_encoder_attn=True))

    @classmethod
    def choose_decoder_class(cls, cfg: TransformerConfig) -> Any:
        """Return the class of the decoder for the nested options ``cfg``."""
        raise NotImplementedError


@register_model("luna_lm", dataclass=LunaLanguageModelConfig)
class LunaLanguageModel(LanguageModel):
    """Luna causal attention and feed-forward layers; decoding step by step keeps a state of constant size.

    ``LunaLanguageModel.from_pretrained(dir, checkpoint_file, data, bpe=..)`` gives fairseq's generator
    interface, with :meth:`luna_fairseq.models.generator_hub.LanguageModelHub.read`.
    """

    config_class = LunaLanguageModelConfig

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
    def choose_decoder_class(cls, cfg: TransformerConfig) -> Any:
        """Return Luna's decoder."""
        return FairseqLunaDecoder


def adaptive_input(cfg: TransformerConfig, dictionary: Dictionary) -> AdaptiveInput:
    """fairseq's embedding whose width falls with the frequency of words; ``cfg`` is nested.

    Raises:
        InputError: cutoffs that cannot be, or options that do not go together
    """
    given = getattr(cfg, "adaptive_input_cutoff", None)  # fairseq leaves out what is None
    cutoff = eval_str_list(given, type=int) or []
    bounds = [0, *cutoff, len(dictionary)]
    if not cutoff or any(low >= high for low, high in zip(bounds, bounds[1:])):
        raise InputError(
            f"--adaptive-input-cutoff {given}: give rising numbers below the "
            f"dictionary's {len(dictionary)} entries, as 20000,60000"
        )
    if cfg.share_decoder_input_output_embed:
        raise InputError(
            "--share-decoder-input-output-embed and --adaptive-input do not go together: give "
            "--tie-adaptive-weights, which adaptive softmax has"
        )
    softmax = cfg.adaptive_softmax_cutoff, cfg.adaptive_softmax_factor, cfg.decoder.output_dim
    if cfg.tie_adaptive_weights and softmax != (
        given,
        cfg.adaptive_input_factor,
        cfg.decoder.input_dim,
    ):
        raise InputError(
            "--tie-adaptive-weights needs one cutoff, one factor and one width: give "
            "--adaptive-softmax-cutoff, --adaptive-softmax-factor and --decoder-output-dim the values of "
            "adaptive input"
        )
    return AdaptiveInput(
        len(dictionary),
        dictionary.pad(),
        cfg.decoder.input_dim,
        cfg.adaptive_input_factor,
        cfg.decoder.embed_dim,
        cutoff,
        cfg.quant_noise.pq,
        cfg.quant_noise.pq_block_size,
    )


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
