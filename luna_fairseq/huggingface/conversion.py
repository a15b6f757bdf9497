"""Models of this package as transformers' classes, and their parameters back under fairseq's names."""

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
from luna_fairseq.models.luna import LunaModel
from luna_fairseq.models.luna_classifier import LunaClassifier
from luna_fairseq.models.luna_lm import LunaLanguageModel
from luna_fairseq.models.luna_masked_lm import LunaMaskedLM

HEADS = {
    "pooling_classification_head": "maximum",
    "mean_classification_head": "mean",
    "attention_classification_head": "attention",
}
Names = Tuple[Tuple[str, str], ...]


def resolved_options(cfg: Any, names: Iterable[str]) -> Dict[str, Any]:
    """Options ``names`` with their values in fairseq's nested config ``cfg``, in which none is open."""
    found = {}
    for name in names:
        side, _, rest = name.partition("_")
        if name.startswith("quant_noise_"):
            found[name] = getattr(cfg.quant_noise, name[len("quant_noise_") :])
        elif side in ("encoder", "decoder") and hasattr(getattr(cfg, side), rest):
            found[name] = getattr(getattr(cfg, side), rest)
        elif hasattr(cfg, name):
            found[name] = getattr(cfg, name)
    return found


def declared_options(model: Any) -> Dict[str, Any]:
    """The options of the dataclass of a flat model, with their values: a new one reaches config.json by
    itself."""
    built = plain_options(getattr(model, "args", {}))
    declared = fields(type(model).__dataclass) if built else ()
    return {field.name: built[field.name] for field in declared if field.name in built}


def _encoder_options(encoder: Any) -> Dict[str, Any]:
    norm = encoder.packed_layer_norm
    packed_is_read = norm is not None and norm.weight is not None
    return {**resolved_options(encoder.cfg, DEFAULTS), "packed_is_read": packed_is_read}


def _masked_lm(model: Any, head: str) -> Dict[str, Any]:
    options = _encoder_options(model.encoder.sentence_encoder)
    return {**options, "tie_word_embeddings": not model.args.untie_weights_luna}


def _fine_tuned(model: Any, head: str) -> Dict[str, Any]:
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


def _long_classifier(model: Any, head: str) -> Dict[str, Any]:
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


def _decoder(model: Any) -> Dict[str, Any]:
    decoder = model.decoder
    return {
        **resolved_options(decoder.cfg, DECODER_DEFAULTS),
        # fairseq's translation models do not heed the option --decoder-input-dim.
        "decoder_input_dim": decoder.embed_tokens.embedding_dim,
        "decoder_output_dim": decoder.output_projection.in_features,
        "tie_word_embeddings": decoder.output_projection.weight is decoder.embed_tokens.weight,
        "decoder_start_token_id": decoder.dictionary.eos(),
        "use_cache": True,
    }


def _causal_lm(model: Any, head: str) -> Dict[str, Any]:
    return {**resolved_options(model.decoder.cfg, LunaDecoderConfig.defaults), **_decoder(model)}


def _translation(model: Any, head: str) -> Dict[str, Any]:
    source = model.encoder.embed_tokens
    return {
        **resolved_options(model.encoder.cfg, DEFAULTS),
        **_decoder(model),
        "share_all_embeddings": source is model.decoder.embed_tokens,
        "separators": getattr(model.decoder, "separators", None),
        "source_vocab_size": source.num_embeddings,
        "is_encoder_decoder": True,
    }


@dataclass(frozen=True)
class Kind:
    """A kind of model.

    Attributes:
        title: what a person calls it.
        auto: transformers' class that loads it.
        module, model: where the exported class is, and its name.
        options: of fairseq's model and the name of its head, the configuration of the exported one.
        names: how fairseq's names of parameters begin, and the exported model's.
        head: the classification head, if it is of one.
    """

    title: str
    auto: str
    module: str
    model: str
    options: Callable[[Any, str], Dict[str, Any]]
    names: Names
    head: str = ""

    def load_class(self) -> Any:
        """Return the class of the exported model."""
        return getattr(import_module(f"luna_fairseq.huggingface.{self.module}"), self.model)

    def auto_map(self, configuration: str) -> Dict[str, str]:
        """Return the entry ``auto_map`` of config.json, which names the shipped classes."""
        return {"AutoConfig": f"configuration_luna.{configuration}", self.auto: f"{self.module}.{self.model}"}


_ENCODER = ("encoder.sentence_encoder.", "luna.")
MASKED_LM = Kind(
    "masked language model",
    "AutoModelForMaskedLM",
    "modeling_luna",
    "LunaForMaskedLM",
    _masked_lm,
    (
        _ENCODER,
        ("encoder.lm_head.weight", "lm_head.decoder.weight"),
        ("encoder.lm_head.bias", "lm_head.decoder.bias"),
        ("encoder.lm_head.", "lm_head."),
    ),
)
LONG_CLASSIFIER = Kind(
    "classifier of long sequences",
    "AutoModelForSequenceClassification",
    "modeling_luna_classifier",
    "LunaForLongSequenceClassification",
    _long_classifier,
    (
        ("encoder.", "luna."),
        ("classifier.", "classifier.layers."),
        ("sentence_projection_layer.", "classifier.out_proj."),
    ),
)
CAUSAL_LM = Kind(
    "causal language model",
    "AutoModelForCausalLM",
    "modeling_luna_lm",
    "LunaForCausalLM",
    _causal_lm,
    (("decoder.output_projection.", "lm_head."), ("decoder.", "luna.")),
)
TRANSLATION = Kind(
    "translation model",
    "AutoModelForSeq2SeqLM",
    "modeling_luna_translation",
    "LunaForConditionalGeneration",
    _translation,
    (
        ("encoder.", "luna.encoder."),
        ("decoder.output_projection.", "lm_head."),
        ("decoder.", "luna.decoder."),
    ),
)
KINDS = {
    LunaModel: TRANSLATION,
    LunaLanguageModel: CAUSAL_LM,
    LunaMaskedLM: MASKED_LM,
    LunaClassifier: LONG_CLASSIFIER,
}


def fine_tuned(head: str) -> Kind:
    """The kind of a masked language model with the classification head ``head``."""
    return Kind(
        "fine-tuned classifier",
        "AutoModelForSequenceClassification",
        "modeling_luna_classifier",
        "LunaForSequenceClassification",
        _fine_tuned,
        (_ENCODER, (f"classification_heads.{head}.", "classifier.")),
        head,
    )


def kind_of(model: Any, head: Optional[str] = None) -> Kind:
    """The kind of fairseq's ``model``; with the classification head ``head``, if any.

    Raises:
        InputError: none of these, or a part that the exported models do not have
    """
    options, decoder = getattr(model, "args", None), getattr(model, "decoder", None)
    layers, embedding = getattr(options, "layer_type", "luna"), getattr(decoder, "embed_tokens", None)
    if type(model) not in KINDS or layers != "luna":
        name = type(model).__name__ + ("" if layers == "luna" else f" with --layer-type {layers}")
        raise InputError(
            f"the checkpoint's model is {name}: Luna's translation models, causal and masked language models "
            "and classifiers can be exported, peers and recurrent models cannot"
        )
    for what, reason, found in (
        ("with adaptive softmax", "have logits", getattr(decoder, "adaptive_softmax", None) is not None),
        ("with adaptive input", "have one embedding", isinstance(embedding, AdaptiveInput)),
    ):
        if found:
            raise InputError(f"a model {what} cannot be exported: transformers' {reason}")
    if head is None:
        return KINDS[type(model)]
    heads = getattr(model, "classification_heads", {})
    if head not in heads:
        raise InputError(f"--head {head}: the model's heads are {', '.join(heads) or 'none'}")
    return fine_tuned(head)


def read_names(fairseq_names: Iterable[str], config: Dict[str, Any]) -> Dict[str, str]:
    """Map parameter names of a checkpoint to those of an exported model.

    Args:
        fairseq_names: parameter names of a checkpoint
        config: contents of the exported model's config.json

    Returns:
        fairseq's name -> exported name, without parameters that the exported model lacks

    Raises:
        InputError: the configuration does not belong to an exported model
    """
    architecture = (config.get("architectures") or ["none"])[0]
    for kind in (*KINDS.values(), fine_tuned(config.get("classifier_head", ""))):
        if kind.model == architecture:
            return _names(fairseq_names, kind)
    raise InputError(f"the folder's model is {architecture}, which luna-export-huggingface did not write")


def _names(fairseq_names: Iterable[str], kind: Kind) -> Dict[str, str]:
    """Map names for a model of this ``kind``. Names of buffers and of other parameters are dropped."""
    found = {}
    for name in fairseq_names:
        begins = next((pair for pair in kind.names if name.startswith(pair[0])), None)
        if begins is not None and not name.endswith(("version", "._float_tensor")):
            found[name] = begins[1] + name[len(begins[0]) :]
    return found


def convert(model: Any, kind: Kind, dictionary: Any = None) -> Any:
    """``model`` as transformers' class, in evaluation mode.

    Args:
        model: fairseq's.
        kind: what it becomes.
        dictionary: of what it writes, or of what it reads where these are classes; None of pixels.

    Raises:
        InputError: its activation function has no counterpart there.
    """
    options = {**declared_options(model), **kind.options(model, kind.head)}
    for name in ("activation_fn", "pooler_activation_fn", "classifier_activation_fn"):
        if options.get(name, "gelu") not in ACTIVATIONS:
            raise InputError(f"transformers has no activation function like {options[name]}")
    if dictionary is not None:
        options["vocab_size"] = len(dictionary)
        writes = kind in (CAUSAL_LM, TRANSLATION)  # what they write begins with the end of another text
        options["bos_token_id"] = dictionary.eos() if writes else dictionary.bos()
        options["eos_token_id"] = dictionary.eos()
        options["pad_token_id"] = dictionary.pad()
    exported_class = kind.load_class()
    configuration = exported_class.config_class
    config = configuration(**options, auto_map=kind.auto_map(configuration.__name__))
    exported = exported_class(config).eval()
    trained = model.state_dict()
    state = {theirs: trained[ours] for ours, theirs in _names(trained, kind).items()}
    missing, unexpected = exported.load_state_dict(state, strict=False)
    for name in missing + unexpected:
        raise InputError(f"the checkpoint does not fit the exported model: {name}; please report this")
    exported.tie_weights()
    if kind in (CAUSAL_LM, TRANSLATION):
        exported.generation_config = GenerationConfig(**_generation(config, kind))
    return exported


def _generation(config: Any, kind: Kind) -> Dict[str, Any]:
    """Return the defaults of ``generate``. A translation model searches as fairseq-generate does: it writes
    at least one word and never padding.

    Limits are ``max_length`` and ``min_length``, which count the start token and a decoder prompt. A caller's
    ``max_new_tokens`` and ``min_new_tokens`` take precedence over these, but not the other way round.
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
