"""The models that Luna's are compared with, with any attention; registered with fairseq by being imported.

``--arch peer_transformer`` for translation, ``peer_roberta`` for masked language modelling and
``peer_lra_<task>`` for Long Range Arena take ``--attention NAME``. ``--arch peer_lm`` for causal language
modelling takes ``--decoder-attention NAME``. ``rnn_attention`` has its own file.
"""

from argparse import Namespace
from typing import Any, Dict, Type

from torch import nn

from fairseq.data import Dictionary
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig
from luna_fairseq.checks.model_options import fill_open
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
    """fairseq's Transformer; nothing but its attentions differs from one peer to another.

    Args:
        cfg: nested view of a :class:`PeerTransformerConfig`
        encoder: :class:`PeerEncoder`
        decoder: :class:`PeerDecoder`
    """

    encoder_class = PeerEncoder
    decoder_class = PeerDecoder

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "PeerTransformer":
        """Build the model for the dictionaries of ``task``; ``cfg`` is flat.

        Raises:
            InputError: an attention that has not the form it is asked for in, or widths, heads or options
                that cannot be
        """
        options = fill_open(flat_options(cfg, PeerTransformerConfig()), PeerTransformerConfig)
        if options["diagonal_prior"] and options["cross_attention"] != "softmax":
            raise InputError(
                f"--diagonal-prior needs softmax cross-attention, got {options['cross_attention']}. Remove "
                "the option, or add --cross-attention softmax."
            )
        cfg = nested_config(Namespace(**options))
        check_widths(cfg, "give them the same width")
        return super().build_model(cfg, task)

    def prepare_for_inference_(self, cfg: Any) -> None:
        """As fairseq's. Raises InputError as :meth:`check_generation`."""
        self.check_generation(getattr(cfg, "generation", None))
        super().prepare_for_inference_(cfg)

    def check_generation(self, generation: Any) -> None:
        """
        Args:
            generation: options of generation

        Raises:
            InputError: alignments are asked of cross-attention that computes no weights
        """
        attention = self.decoder.cfg.cross_attention
        aligned = getattr(generation, "print_alignment", None) or getattr(generation, "replace_unk", None)
        if aligned is not None and attention != "softmax":
            raise InputError(
                f"--print-alignment and --replace-unk need weights over the source, which {attention} "
                "attention does not compute. Remove them, or train with --cross-attention softmax."
            )


@register_model("peer_lm", dataclass=PeerLanguageModelConfig)
class PeerLanguageModel(LanguageModel):
    """fairseq's Transformer language model; nothing but its attention differs from one peer to another.

    Args:
        decoder: :class:`PeerDecoder` without attention to a source
    """

    config_class = PeerLanguageModelConfig

    @classmethod
    def choose_decoder_class(cls, cfg: TransformerConfig) -> Type[PeerDecoder]:
        """Return :class:`PeerDecoder`.

        Raises:
            InputError: the nested options ``cfg`` ask for attention to a source
        """
        for name in ("diagonal_prior", "sentence_diagonal"):
            if getattr(cfg, name):
                raise InputError(
                    f"--{name.replace('_', '-')} needs a source, but a causal language model has none. "
                    "Remove the option."
                )
        return PeerDecoder


class PeerRobertaEncoder(SentenceModelEncoder):
    """RoBERTa's encoder and LM head, with a :class:`PeerEncoder` as its sentence encoder."""

    def build_encoder(self, args: Any, dictionary: Dictionary, embed_tokens: nn.Embedding) -> PeerEncoder:
        return PeerEncoder(nested_config(sentence_encoder_options(args)), dictionary, embed_tokens)


@register_model("peer_roberta", dataclass=PeerRobertaConfig)
class PeerRoberta(SentenceModel):
    """fairseq's RoBERTa; nothing but its attention differs from one peer to another.

    Args:
        args: a :class:`PeerRobertaConfig` or a namespace with its fields
        encoder: :class:`PeerRobertaEncoder`
    """

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "PeerRoberta":
        """Build the model for the dictionary of ``task``.

        Raises:
            InputError: an attention that has no bidirectional form, or a task with longer sequences than
                positions
        """
        args = Namespace(**flat_options(cfg, PeerRobertaConfig()))
        check_sequences_fit(task, args.max_positions)
        return cls(args, PeerRobertaEncoder(args, task.source_dictionary))


@register_model("peer_lra", dataclass=PeerClassifierConfig)
class PeerClassifier(LunaClassifier):
    """The twin of ``transformer_lra_<task>`` with another attention.

    Args:
        args: namespace with the fields of :class:`PeerClassifierConfig`, all filled in
        encoder: :class:`PeerEncoder`
        pairs: sequences come in pairs, both through the one encoder (default: False)
    """

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "PeerClassifier":
        """Build the model for the dictionary of ``task``; for pixels where it has none.

        Raises:
            InputError: an attention that has no bidirectional form, or options that do not go together
        """
        options = {**vars(LunaClassifierConfig()), **flat_options(cfg, PeerClassifierConfig())}
        args = Namespace(**{**options, "layer_type": "transformer"})
        check_classifier(args, "image" if task.source_dictionary is None else "text")
        return cls(args, build_encoder(args, task.source_dictionary, PeerEncoder), task.pairs)


# The encoders of "Informer, an Information Organization Transformer Architecture", for n = 200 tokens and r =
# 8, under the Transformer's decoder. Sizes are the defaults: 6 + 6 layers of 512, 2,048, 8 heads, dropout
# 0.1.
_PUBLISHED = {"decoder_attention": "softmax", "cross_attention": "softmax", "max_source_positions": 200}
_LINFORMER = {"attention": "linformer", "linformer_k": 8, "linformer_sharing": "layerwise"}
_CONVOLUTION = {**_PUBLISHED, "attention": "conv_linformer"}
# Of each model, what each architecture sets apart from the defaults of its dataclass; small and tiny are of
# luna_small_512's and luna_tiny_512's sizes.
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
    if _preset.get("layer_type") == "transformer":  # the Transformer's twin
        _same = {option: value for option, value in _preset.items() if option != "layer_type"}
        ARCHITECTURES["peer_lra"][_name.replace("transformer", "peer")] = _same
for _model, _presets in ARCHITECTURES.items():
    register_architectures(_model, _presets)
