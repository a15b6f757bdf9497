"""fairseq's Transformer models with efficient attention mechanisms from other papers, as baselines for Luna.

Importing this module registers the models with fairseq:

- ``--arch peer_transformer`` for translation, with ``--attention``, ``--decoder-attention`` and
  ``--cross-attention``;
- ``--arch peer_roberta`` for masked language modeling, with ``--attention``;
- ``--arch peer_lra_<task>`` for Long Range Arena, with ``--attention``;
- ``--arch peer_lm`` for causal language modeling, with ``--decoder-attention``.

The recurrent model ``rnn_attention`` has its own module.
"""

from argparse import Namespace
from typing import Any, Dict, Type

from torch import nn

from fairseq.data import Dictionary
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig
from luna_fairseq.checks.model_options import fill_in_defaults
from luna_fairseq.errors import InputError
from luna_fairseq.models import luna_classifier
from luna_fairseq.models.architectures import Presets, encoder_sizes, register_architectures
from luna_fairseq.models.bases import (
    EncoderDecoder,
    SentenceModel,
    SentenceModelEncoder,
    check_sequences_fit,
    sentence_encoder_options,
)
from luna_fairseq.models.luna import check_widths, flat_options, nested_config
from luna_fairseq.models.luna_classifier import LunaClassifier, build_encoder, check_classifier
from luna_fairseq.models.luna_classifier_config import LunaClassifierConfig
from luna_fairseq.models.luna_lm import LanguageModel
from luna_fairseq.peers.config import (
    PeerClassifierConfig,
    PeerLanguageModelConfig,
    PeerRobertaConfig,
    PeerTransformerConfig,
)
from luna_fairseq.peers.layers import PeerDecoder, PeerEncoder
from luna_fairseq.peers.rnn_attention import RnnAttentionModel

__all__ = ["PeerClassifier", "PeerLanguageModel", "PeerRoberta", "PeerTransformer", "RnnAttentionModel"]


@register_model("peer_transformer", dataclass=PeerTransformerConfig)
class PeerTransformer(EncoderDecoder):
    """fairseq's Transformer for translation, with the attention mechanisms selected by the options.

    ``--attention``, ``--decoder-attention`` and ``--cross-attention`` name mechanisms such as "linear". With
    softmax attention, the parameters and outputs are the same as in fairseq's Transformer.

    Example:
        >>> task = Namespace(source_dictionary=Dictionary(), target_dictionary=Dictionary())
        >>> cfg = PeerTransformerConfig(attention="linear", encoder_embed_dim=16, encoder_layers=2)
        >>> model = PeerTransformer.build_model(cfg, task)
        >>> model.encoder.layers[0].self_attn.name
        'linear'
    """

    encoder_class = PeerEncoder
    decoder_class = PeerDecoder

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "PeerTransformer":
        options = fill_in_defaults(flat_options(cfg, PeerTransformerConfig()), PeerTransformerConfig)
        if options["diagonal_prior"] and options["cross_attention"] != "softmax":
            raise InputError(
                f"--diagonal-prior needs softmax cross-attention, got {options['cross_attention']}. Remove "
                "the option, or add --cross-attention softmax."
            )
        cfg = nested_config(Namespace(**options))
        check_widths(cfg, "give them the same width")
        return super().build_model(cfg, task)

    def prepare_for_inference_(self, cfg: Any) -> None:
        self.check_generation(getattr(cfg, "generation", None))
        super().prepare_for_inference_(cfg)

    def check_generation(self, generation: Any) -> None:
        """Raise InputError if generation options need attention weights that the model does not compute."""
        attention = self.decoder.cfg.cross_attention
        aligned = getattr(generation, "print_alignment", None) or getattr(generation, "replace_unk", None)
        if aligned is not None and attention != "softmax":
            raise InputError(
                f"--print-alignment and --replace-unk need weights over the source, which {attention} "
                "attention does not compute. Remove them, or train with --cross-attention softmax."
            )


@register_model("peer_lm", dataclass=PeerLanguageModelConfig)
class PeerLanguageModel(LanguageModel):
    """fairseq's Transformer language model, with the attention mechanism of ``--decoder-attention``."""

    config_class = PeerLanguageModelConfig

    @classmethod
    def choose_decoder_class(cls, cfg: TransformerConfig) -> Type[PeerDecoder]:
        """Return :class:`PeerDecoder`. Raise InputError for options that only apply to cross-attention."""
        for name in ("diagonal_prior", "sentence_diagonal"):
            if getattr(cfg, name):
                raise InputError(
                    f"--{name.replace('_', '-')} needs a source, but a causal language model has none. "
                    "Remove the option."
                )
        return PeerDecoder


class PeerRobertaEncoder(SentenceModelEncoder):
    """RoBERTa encoder and LM head, with the attention mechanism selected by ``--attention``."""

    def build_encoder(self, args: Any, dictionary: Dictionary, embed_tokens: nn.Embedding) -> PeerEncoder:
        return PeerEncoder(nested_config(sentence_encoder_options(args)), dictionary, embed_tokens)


@register_model("peer_roberta", dataclass=PeerRobertaConfig)
class PeerRoberta(SentenceModel):
    """fairseq's RoBERTa masked language model, with the attention mechanism selected by ``--attention``."""

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "PeerRoberta":
        args = Namespace(**flat_options(cfg, PeerRobertaConfig()))
        check_sequences_fit(task, args.max_positions)
        return cls(args, PeerRobertaEncoder(args, task.source_dictionary))


@register_model("peer_lra", dataclass=PeerClassifierConfig)
class PeerClassifier(LunaClassifier):
    """Classifier for Long Range Arena, with the attention mechanism selected by ``--attention``.

    Apart from its attention, the model is the same as ``transformer_lra_<task>``.
    """

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "PeerClassifier":
        """Build the model for the task's dictionary, or for pixels if the task has no dictionary."""
        options = {**vars(LunaClassifierConfig()), **flat_options(cfg, PeerClassifierConfig())}
        args = Namespace(**{**options, "layer_type": "transformer"})
        check_classifier(args, "image" if task.source_dictionary is None else "text")
        return cls(args, build_encoder(args, task.source_dictionary, PeerEncoder), task.pairs)


# Encoders of "Informer, an Information Organization Transformer Architecture" with the Transformer's decoder,
# for n = 200 tokens and r = 8. The sizes are the defaults: 6 + 6 layers of width 512, feed-forward width
# 2,048, 8 heads, dropout 0.1.
_PUBLISHED = {"decoder_attention": "softmax", "cross_attention": "softmax", "max_source_positions": 200}
_LINFORMER = {"attention": "linformer", "linformer_k": 8, "linformer_sharing": "layerwise"}
_CONVOLUTION = {**_PUBLISHED, "attention": "conv_linformer"}
# For each model and architecture, options that differ from the defaults of the model's dataclass. The
# small and tiny architectures have the sizes of luna_small_512 and luna_tiny_512.
ARCHITECTURES: Dict[str, Presets] = {
    "peer_transformer": {
        "peer_transformer": {},
        "linformer_encoder": {**_PUBLISHED, **_LINFORMER},
        "conv_linformer_encoder": _CONVOLUTION,
        "informer_encoder": {**_CONVOLUTION, "information_block": True},
    },
    "peer_roberta": {
        "peer_roberta": {},
        "peer_roberta_small": encoder_sizes(4, 256, 1024, 4),
        "peer_roberta_tiny": encoder_sizes(2, 128, 512, 2),
    },
    "peer_lm": {"peer_lm": {}},
    "peer_lra": {"peer_lra": {}},
}
for _name, _preset in luna_classifier.ARCHITECTURES.items():
    if _preset.get("layer_type") == "transformer":
        _options = {option: value for option, value in _preset.items() if option != "layer_type"}
        ARCHITECTURES["peer_lra"][_name.replace("transformer", "peer")] = _options
for _model, _presets in ARCHITECTURES.items():
    register_architectures(_model, _presets)
