"""Conversion of this package's fairseq models to transformers models.

A :class:`ModelKind` describes how to convert one type of model, such as translation models. For each type, a
function derives the fields of config.json from the fairseq model.
"""

from contextlib import suppress
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

import torch
from transformers import GenerationConfig

from fairseq.modules import AdaptiveInput
from luna_fairseq.checks.model_options import plain_options
from luna_fairseq.errors import InputError
from luna_fairseq.huggingface.adapters import ACTIVATIONS
from luna_fairseq.huggingface.configuration_luna import DECODER_DEFAULTS, DEFAULTS, LunaDecoderConfig
from luna_fairseq.models.fairseq_layers import get_option
from luna_fairseq.models.luna import LunaModel
from luna_fairseq.models.luna_classifier import LunaClassifier
from luna_fairseq.models.luna_lm import LunaLanguageModel
from luna_fairseq.models.luna_masked_lm import LunaMaskedLM

# Name of a classification head -> value of ``classifier_reads``. All other heads classify the first token.
HEADS = {
    "pooling_classification_head": "maximum",
    "mean_classification_head": "mean",
    "attention_classification_head": "attention",
}
# Pairs of parameter name prefixes: (prefix in fairseq, prefix in the exported model).
Prefixes = Tuple[Tuple[str, str], ...]


def resolved_options(cfg: Any, names: Iterable[str]) -> Dict[str, Any]:
    """Return the options with the given names from fairseq's nested configuration, omitting missing options.

    For example, ``encoder_embed_dim`` is the value of ``cfg.encoder.embed_dim``. fairseq has already replaced
    unset options with their defaults.
    """
    options = {}
    for name in names:
        with suppress(AttributeError):
            options[name] = get_option(cfg, name)
    return options


def declared_options(model: Any) -> Dict[str, Any]:
    """Return all options in the configuration dataclass of a fairseq model, as a mapping from name to value.

    The export writes them to config.json, so that new options of the dataclass are exported automatically.
    """
    values = plain_options(getattr(model, "args", {}))
    declared = fields(type(model).__dataclass) if values else ()
    return {field.name: values[field.name] for field in declared if field.name in values}


def _encoder_options(encoder: Any) -> Dict[str, Any]:
    """Return the config.json fields of an encoder-only model."""
    norm = encoder.packed_layer_norm
    packed_is_read = norm is not None and norm.weight is not None
    return {**resolved_options(encoder.cfg, DEFAULTS), "packed_is_read": packed_is_read}


def _masked_lm_options(model: Any, head: str) -> Dict[str, Any]:
    """Return the config.json fields of a masked language model, which has no classification ``head``."""
    options = _encoder_options(model.encoder.sentence_encoder)
    return {**options, "tie_word_embeddings": not model.args.untie_weights_luna}


def _fine_tuned_options(model: Any, head: str) -> Dict[str, Any]:
    """Return the config.json fields of a masked language model with the classification head ``head``."""
    layers = model.classification_heads[head]
    return {
        **_encoder_options(model.encoder.sentence_encoder),
        "classifier_reads": HEADS.get(head, "first"),
        "classifier_head": head,
        "classifier_inner_dim": layers.dense.out_features,
        "pooler_activation_fn": model.args.pooler_activation_fn,
        "pooler_dropout": model.args.pooler_dropout,
        "num_labels": layers.out_proj.out_features,
        "tie_word_embeddings": False,
    }


def _long_classifier_options(model: Any, head: str) -> Dict[str, Any]:
    """Return the config.json fields of a Long Range Arena classifier, whose ``head`` has no name."""
    args = model.args
    reads_pixels = not isinstance(model.encoder.embed_tokens, torch.nn.Embedding)
    reads = "first" if args.sen_rep_type == "cls" else "tokens"
    return {
        **_encoder_options(model.encoder),
        "layer_repeats": args.encoder_layers if args.tie_layer_weights else 1,
        "reads_pixels": reads_pixels,
        "prepends_cls": args.sen_rep_type == "cls" and not args.use_p,
        "classifier_reads": "mean" if args.use_p else reads,
        "pair_combination": args.pair_combination if model.pairs else "",
        "classifier_layers": args.classifier_layers,
        "classifier_out_dim": args.classifier_out_dim,
        "classifier_activation_fn": args.classifier_activation_fn,
        "num_labels": args.sentence_class_num,
        "tie_word_embeddings": False,
        **({"vocab_size": 1, "pad_token_id": 0} if reads_pixels else {}),
    }


def _decoder_options(model: Any) -> Dict[str, Any]:
    """Return the config.json fields shared by all models with a decoder."""
    decoder = model.decoder
    return {
        **resolved_options(decoder.cfg, DECODER_DEFAULTS),
        # fairseq's translation models ignore --decoder-input-dim, so the width is read from the embedding
        # itself.
        "decoder_input_dim": decoder.embed_tokens.embedding_dim,
        "decoder_output_dim": decoder.output_projection.in_features,
        "tie_word_embeddings": decoder.output_projection.weight is decoder.embed_tokens.weight,
        "decoder_start_token_id": decoder.dictionary.eos(),
        "use_cache": True,
    }


def _causal_lm_options(model: Any, head: str) -> Dict[str, Any]:
    """Return the config.json fields of a causal language model, which has no classification ``head``."""
    return {**resolved_options(model.decoder.cfg, LunaDecoderConfig.defaults), **_decoder_options(model)}


def _translation_options(model: Any, head: str) -> Dict[str, Any]:
    """Return the config.json fields of a translation model, which has no classification ``head``."""
    source = model.encoder.embed_tokens
    return {
        **resolved_options(model.encoder.cfg, DEFAULTS),
        **_decoder_options(model),
        "share_all_embeddings": source is model.decoder.embed_tokens,
        "source_vocab_size": source.num_embeddings,
        "is_encoder_decoder": True,
    }


@dataclass(frozen=True)
class ModelKind:
    """Rules for converting one type of fairseq model, such as translation models, to transformers.

    Attributes:
        title: name of the type in the model card, such as "masked language model".
        auto_class: transformers class that loads the exported folder, such as "AutoModelForMaskedLM".
        module: module of this package that defines the exported class.
        class_name: name of the exported class.
        options: function ``(fairseq model, name of its head) -> fields of config.json``.
        name_prefixes: pairs of a parameter name prefix in fairseq and its replacement in the exported model.
            The first matching pair applies.
        head: name of the classification head to export. "" if there is none.
    """

    title: str
    auto_class: str
    module: str
    class_name: str
    options: Callable[[Any, str], Dict[str, Any]]
    name_prefixes: Prefixes
    head: str = ""

    def load_class(self) -> Any:
        """Import and return the transformers class of the exported model."""
        return getattr(import_module(f"luna_fairseq.huggingface.{self.module}"), self.class_name)

    def auto_map(self, configuration: str) -> Dict[str, str]:
        """Return the ``auto_map`` entry of config.json, which maps auto classes to the classes to load.

        ``configuration`` is the name of the configuration class.
        """
        return {
            "AutoConfig": f"configuration_luna.{configuration}",
            self.auto_class: f"{self.module}.{self.class_name}",
        }


_ENCODER = ("encoder.sentence_encoder.", "luna.")
MASKED_LM = ModelKind(
    "masked language model",
    "AutoModelForMaskedLM",
    "modeling_luna",
    "LunaForMaskedLM",
    _masked_lm_options,
    (
        _ENCODER,
        ("encoder.lm_head.weight", "lm_head.decoder.weight"),
        ("encoder.lm_head.bias", "lm_head.decoder.bias"),
        ("encoder.lm_head.", "lm_head."),
    ),
)
LONG_CLASSIFIER = ModelKind(
    "classifier of long sequences",
    "AutoModelForSequenceClassification",
    "modeling_luna_classifier",
    "LunaForLongSequenceClassification",
    _long_classifier_options,
    (
        ("encoder.", "luna."),
        ("classifier.", "classifier.layers."),
        ("sentence_projection_layer.", "classifier.out_proj."),
    ),
)
CAUSAL_LM = ModelKind(
    "causal language model",
    "AutoModelForCausalLM",
    "modeling_luna_lm",
    "LunaForCausalLM",
    _causal_lm_options,
    (("decoder.output_projection.", "lm_head."), ("decoder.", "luna.")),
)
TRANSLATION = ModelKind(
    "translation model",
    "AutoModelForSeq2SeqLM",
    "modeling_luna_translation",
    "LunaForConditionalGeneration",
    _translation_options,
    (
        ("encoder.", "luna.encoder."),
        ("decoder.output_projection.", "lm_head."),
        ("decoder.", "luna.decoder."),
    ),
)
# fairseq model class -> kind of model, without a classification head.
KINDS = {
    LunaModel: TRANSLATION,
    LunaLanguageModel: CAUSAL_LM,
    LunaMaskedLM: MASKED_LM,
    LunaClassifier: LONG_CLASSIFIER,
}


def fine_tuned_kind(head: str) -> ModelKind:
    """Return the :class:`ModelKind` of a masked language model fine-tuned for classification.

    ``head`` is the name of the classification head in the checkpoint.
    """
    return ModelKind(
        "fine-tuned classifier",
        "AutoModelForSequenceClassification",
        "modeling_luna_classifier",
        "LunaForSequenceClassification",
        _fine_tuned_options,
        (_ENCODER, (f"classification_heads.{head}.", "classifier.")),
        head,
    )


def find_kind(model: Any, head: Optional[str] = None) -> ModelKind:
    """Return the :class:`ModelKind` of a fairseq model. ``head`` names the classification head, if any.

    Raises InputError if the model cannot be exported, or has no head of this name.
    """
    _check_exportable(model, head)
    if head is None:
        return KINDS[type(model)]
    heads = getattr(model, "classification_heads", {})
    if head not in heads:
        raise InputError(
            f"--head {head} is not a head of the model. Give one of: {', '.join(heads) or 'none'}."
        )
    return fine_tuned_kind(head)


def _check_exportable(model: Any, head: Optional[str]) -> None:
    """Raise InputError if a fairseq model uses options that the exported classes do not implement.

    ``head`` names the classification head to export, if any.
    """
    decoder = getattr(model, "decoder", None)
    args = getattr(model, "args", None)
    layer_type = getattr(args, "layer_type", "luna")
    if type(model) not in KINDS or layer_type != "luna":
        name = type(model).__name__ + ("" if layer_type == "luna" else f" with --layer-type {layer_type}")
        raise InputError(
            f"Expected a translation model, language model or classifier of Luna, got {name}. Other models "
            "cannot be exported."
        )
    if getattr(decoder, "adaptive_softmax", None) is not None:
        raise InputError(
            "A model with adaptive softmax cannot be exported, because transformers needs logits."
        )
    if isinstance(getattr(decoder, "embed_tokens", None), AdaptiveInput):
        raise InputError(
            "A model with adaptive input cannot be exported, because transformers needs a single embedding."
        )
    if decoder is not None and decoder.output_projection.out_features != decoder.embed_tokens.num_embeddings:
        raise InputError(
            f"A model with --output-dictionary-size {decoder.output_projection.out_features} cannot be "
            "exported, because transformers needs a logit for every token of the dictionary."
        )
    if head is not None and getattr(args, "spectral_norm_classification_head", False):
        raise InputError(
            f"The head {head} has --spectral-norm-classification-head and cannot be exported. Give --head "
            "none to export the language model."
        )


def map_names(fairseq_names: Iterable[str], config: Dict[str, Any]) -> Dict[str, str]:
    """Map parameter names in a checkpoint to names in an exported folder whose config.json is ``config``.

    For example, "decoder.output_projection.weight" becomes "lm_head.weight". Parameters that do not exist in
    the exported model are omitted. Raises InputError if the folder does not contain an exported Luna model.
    """
    architecture = (config.get("architectures") or ["none"])[0]
    for kind in (*KINDS.values(), fine_tuned_kind(config.get("classifier_head", ""))):
        if kind.class_name == architecture:
            return _map_names(fairseq_names, kind)
    raise InputError(
        f"Expected a folder that luna-export-huggingface wrote, got a model of the class {architecture}."
    )


def _map_names(fairseq_names: Iterable[str], kind: ModelKind) -> Dict[str, str]:
    """Map parameter names in a checkpoint to names in an exported model, omitting buffers."""
    mapped = {}
    for name in fairseq_names:
        pair = next((pair for pair in kind.name_prefixes if name.startswith(pair[0])), None)
        if pair is not None and not name.endswith(("version", "._float_tensor")):
            prefix, replacement = pair
            mapped[name] = replacement + name[len(prefix) :]
    return mapped


def convert(model: Any, kind: ModelKind, dictionary: Any = None) -> Any:
    """Convert a fairseq model, with its weights, to a transformers model in evaluation mode.

    Raises InputError if transformers lacks the activation function, or the weights do not fit the class.

    Args:
        model: fairseq model.
        kind: kind of model, from :func:`find_kind`.
        dictionary: dictionary of the tokens that the model generates. For a model that does not generate
            text, the dictionary of its input tokens. None for an image model.
    """
    options = {**declared_options(model), **kind.options(model, kind.head)}
    for name in ("activation_fn", "pooler_activation_fn", "classifier_activation_fn"):
        if options.get(name, "gelu") not in ACTIVATIONS:
            raise InputError(f"The activation function {options[name]} is not available in transformers.")
    if dictionary is not None:
        options["vocab_size"] = len(dictionary)
        # In fairseq, generation starts from the end-of-sentence token.
        starts_with_eos = kind in (CAUSAL_LM, TRANSLATION)
        options["bos_token_id"] = dictionary.eos() if starts_with_eos else dictionary.bos()
        options["eos_token_id"] = dictionary.eos()
        options["pad_token_id"] = dictionary.pad()
    exported_class = kind.load_class()
    config_class = exported_class.config_class
    config = config_class(**options, auto_map=kind.auto_map(config_class.__name__))
    exported = exported_class(config).eval()
    weights = model.state_dict()
    exported_weights = {theirs: weights[ours] for ours, theirs in _map_names(weights, kind).items()}
    missing, unexpected = exported.load_state_dict(exported_weights, strict=False)
    if missing or unexpected:
        name = (missing + unexpected)[0]
        raise InputError(
            f"The checkpoint does not fit the exported model at {name}. Please report this defect."
        )
    exported.tie_weights()
    if kind in (CAUSAL_LM, TRANSLATION):
        exported.generation_config = GenerationConfig(**_generation_defaults(config, kind))
    return exported


def _generation_defaults(config: Any, kind: ModelKind) -> Dict[str, Any]:
    """Return the default arguments of ``generate``: for translation, the defaults of fairseq-generate.

    A translation has at least one token and no padding. The limits ``max_length`` and ``min_length`` count
    the start token and any decoder prompt. They are used because defaults for ``max_new_tokens`` and
    ``min_new_tokens`` would take precedence over a user's ``max_length`` and ``min_length``.
    """
    options = {
        "bos_token_id": config.eos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
    }
    if kind is CAUSAL_LM:
        return options
    return {
        **options,
        "decoder_start_token_id": config.eos_token_id,
        "num_beams": 5,
        "early_stopping": True,
        "min_length": 2,
        "max_length": 1 + min(201, config.max_target_positions),
        "suppress_tokens": [config.pad_token_id],
        "forced_eos_token_id": config.eos_token_id,
    }
