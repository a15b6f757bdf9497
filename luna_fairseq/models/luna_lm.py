"""Luna causal language model (section 3.3 of the paper) and its named architectures.

The model is a Luna decoder without cross-attention.
"""

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
from luna_fairseq.models.bases import PluginModel
from luna_fairseq.models.fairseq_decoder import FairseqLunaDecoder
from luna_fairseq.models.generator_hub import LanguageModelHub, from_pretrained
from luna_fairseq.models.luna import flat_options, nested_config
from luna_fairseq.models.luna_lm_config import LanguageModelOptions, LunaLanguageModelConfig
from luna_fairseq.models.stream import Stream


class LanguageModel(PluginModel, FairseqLanguageModel):
    """Base class of causal language models, with the interface of fairseq's Transformer language model.

    ``config_class`` is the dataclass with the options of the model.
    """

    config_class: Type[LanguageModelOptions]

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "LanguageModel":
        options = flat_options(cfg, cls.config_class())
        if options["decoder_layers_to_keep"]:
            options["decoder_layers"] = len(options["decoder_layers_to_keep"].split(","))
        # These options refer to task options. The references are resolved only by access through ``cfg``.
        lengths = [safe_getattr(cfg, name, None) for name in ("max_target_positions", "tokens_per_sample")]
        options["max_target_positions"] = next(filter(None, lengths), DEFAULT_MAX_TARGET_POSITIONS)
        nested = nested_config(Namespace(**options))
        dictionary = task.source_dictionary
        if nested.adaptive_input:
            embed_tokens = adaptive_input(nested, dictionary)
        elif nested.tie_adaptive_weights or nested.tie_adaptive_proj:
            raise InputError(
                "--tie-adaptive-weights and --tie-adaptive-proj share the matrices of adaptive input. Give "
                "--adaptive-input, or leave them out"
            )
        else:
            embed_tokens = Embedding(len(dictionary), nested.decoder.input_dim, dictionary.pad())
        build = cls.choose_decoder_class(nested)
        return cls(build(nested, task.target_dictionary, embed_tokens, no_encoder_attn=True))

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a trained model, and return it in a hub interface that continues plain text.

        The arguments are the same as for :func:`luna_fairseq.models.generator_hub.from_pretrained`.

        Example::

            hub = LunaLanguageModel.from_pretrained("checkpoints", "checkpoint_best.pt", "../data-bin")
            hub.sample("Once upon a time", sampling=True)
        """
        return from_pretrained(*args, hub=LanguageModelHub, **kwargs)

    @classmethod
    def choose_decoder_class(cls, cfg: TransformerConfig) -> Any:
        """Return the decoder class. Its constructor takes the arguments of :class:`FairseqLunaDecoder`."""
        raise NotImplementedError


@register_model("luna_lm", dataclass=LunaLanguageModelConfig)
class LunaLanguageModel(LanguageModel):
    """Causal language model with Luna layers.

    Memory use during generation does not grow with the text length. :meth:`from_pretrained` loads a trained
    model that continues plain text.

    Example:
        >>> import torch
        >>> task = Namespace(source_dictionary=Dictionary(), target_dictionary=Dictionary())
        >>> cfg = LunaLanguageModelConfig(decoder_layers=1, tokens_per_sample=64, max_target_positions=64)
        >>> model = LunaLanguageModel.build_model(cfg, task)
        >>> logits, _ = model(torch.tensor([[2, 3, 3]]))
        >>> logits.shape
        torch.Size([1, 3, 4])
    """

    config_class = LunaLanguageModelConfig

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        stream: Optional[Stream] = None,
        keep_after: Optional[int] = None,
        **kwargs: Any,
    ) -> Any:
        """Compute next-token logits [B, T, V] over V dictionary entries, for B sequences of T tokens.

        Args:
            src_tokens: tokens [B, T], shifted right by one.
            src_lengths: ignored.
            stream: recurrent state of the model after earlier text, updated in place.
            keep_after: number of tokens after which the state is stored in ``stream``. If the next call
                repeats the last T - n tokens as context, pass n (default: all T tokens).
            kwargs: remaining arguments of the decoder; ignored if ``stream`` is given.

        Returns:
            Logits, and the dictionary returned by :meth:`FairseqLunaDecoder.extract_features`.
        """
        if stream is None:
            return super().forward(src_tokens, src_lengths=src_lengths, **kwargs)
        return stream.read(self.decoder, src_tokens, keep_after)

    @classmethod
    def choose_decoder_class(cls, cfg: TransformerConfig) -> Any:
        return FairseqLunaDecoder


def adaptive_input(cfg: TransformerConfig, dictionary: Dictionary) -> AdaptiveInput:
    """Build fairseq's adaptive input embedding, in which rare tokens have smaller embeddings."""
    text = getattr(cfg, "adaptive_input_cutoff", None)  # fairseq omits options that are None
    cutoff = eval_str_list(text, type=int) or []
    bounds = [0, *cutoff, len(dictionary)]
    if not cutoff or any(low >= high for low, high in zip(bounds, bounds[1:])):
        raise InputError(
            f"--adaptive-input-cutoff {text}: give increasing numbers below the "
            f"dictionary's {len(dictionary)} entries, such as 20000,60000"
        )
    if cfg.share_decoder_input_output_embed:
        raise InputError(
            "--share-decoder-input-output-embed and --adaptive-input exclude each other: use "
            "--tie-adaptive-weights with adaptive softmax instead"
        )
    softmax = cfg.adaptive_softmax_cutoff, cfg.adaptive_softmax_factor, cfg.decoder.output_dim
    if cfg.tie_adaptive_weights and softmax != (
        text,
        cfg.adaptive_input_factor,
        cfg.decoder.input_dim,
    ):
        raise InputError(
            "--tie-adaptive-weights needs equal cutoffs, factors and widths: give "
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


# For each architecture, the options that differ from the defaults of LunaLanguageModelConfig.
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
