"""Base classes of this project's fairseq models, derived from fairseq's Transformer and RoBERTa.

The base classes load checkpoints, check that they match the model, and prepare models for generation. A
subclass supplies the encoder and the decoder.
"""

from argparse import Namespace
from functools import partial
from typing import Any, Callable, Dict, Optional

from torch import Tensor, nn

from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.models.roberta import RobertaEncoder, RobertaModel
from fairseq.models.roberta.model import RobertaLMHead
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.modules import FairseqDropout
from luna_fairseq.errors import InputError
from luna_fairseq.models.authors_checkpoint import translate_names
from luna_fairseq.models.document_translation import check_separator
from luna_fairseq.models.fairseq_layers import activation_function
from luna_fairseq.models.int8 import quantise
from luna_fairseq.models.onednn_linear import use_onednn
from luna_fairseq.models.sequence_generator import AlignedGenerator, Generator
from luna_fairseq.models.shortlist import Shortlist
from luna_fairseq.modules.heads import ProjectingAttention
from luna_fairseq.text.documents import SEPARATOR

_SENTENCE_ENCODER = "encoder.sentence_encoder"
# Options that turn the translation models' encoder into a sentence encoder.
_SENTENCE_ENCODER_OPTIONS = {
    "encoder_learned_pos": True,
    "no_scale_embedding": True,
    "layernorm_embedding": True,
}


class PluginModel(BaseFairseqModel):
    """Base class of all models in this project. Checks every checkpoint that it loads.

    If a checkpoint does not match the model, a single error message explains why. Checkpoints from the
    authors' code (fairseq-apollo) are converted. On a CPU, linear layers are optimized for generation.
    """

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Prepare the model for generation, using faster linear layers on a CPU.

        Extends :meth:`fairseq.models.BaseFairseqModel.make_generation_fast_`.

        Args:
            kwargs: fairseq options. ``retain_dropout_modules`` names the dropout layers that stay active, as
                a list or a comma-separated string.

        Raises:
            InputError: No dropout layer of the model has any of these names.
        """
        names = kwargs.get("retain_dropout_modules")
        if names:
            names = names.split(",") if isinstance(names, str) else list(names)
            known = {part.module_name for part in self.modules() if isinstance(part, FairseqDropout)} - {None}
            for name in names:
                if name not in known:
                    raise InputError(
                        f"--retain-dropout-modules has the unknown name {name}: choose from "
                        f"{', '.join(sorted(known))}, separated by commas"
                    )
            kwargs["retain_dropout_modules"] = names
        super().make_generation_fast_(**kwargs)
        use_onednn(self)

    def choose_generator(self, args: Any) -> Any:
        """Return the function that builds the beam search, for the generation options of a command."""
        alignment = getattr(args, "print_alignment", None)
        return partial(AlignedGenerator, print_alignment=alignment) if alignment else Generator

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """Convert a state dict from an older checkpoint or from the authors' code to this model's format.

        Extends fairseq's method of the same name.

        Args:
            state_dict: parameters keyed by name, modified in place.
            name: prefix of the model's parameters.

        Raises:
            InputError: The checkpoint's embedding and the data's dictionary differ in size.
        """
        translate_names(state_dict)
        for part, which in (("encoder", "encoder "), ("decoder", "decoder "), (_SENTENCE_ENCODER, "")):
            table = state_dict.get(f"{part}.embed_tokens.weight")
            if table is None:
                continue
            entries = getattr(self.get_submodule(part).embed_tokens, "num_embeddings", len(table))
            if len(table) != entries:
                raise InputError(
                    f"the checkpoint's {which}dictionary has {len(table)} entries, the data's has {entries}: "
                    "use data preprocessed with the dictionaries the model was trained with"
                )
            # fairseq removes the last layer norm from state dicts without a version number, such as the
            # averages saved by --store-ema.
            version = getattr(self.get_submodule(part), "version", None)
            if version is not None:
                state_dict.setdefault(f"{part}.version", version.clone())
        super().upgrade_state_dict_named(state_dict, name)

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Prepare the model for inference, using 8-bit weights if the option ``int8`` is set.

        Extends :meth:`fairseq.models.BaseFairseqModel.prepare_for_inference_`.

        Args:
            cfg: fairseq configuration of the generation command.

        Raises:
            InputError: ``int8`` is set, but the model is on a GPU or in half precision.
        """
        if getattr(getattr(getattr(self, "decoder", None), "cfg", None), "int8", False):
            quantise(self)
        super().prepare_for_inference_(cfg)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load parameters, and report a mismatch in a single sentence.

        Overrides :meth:`torch.nn.Module.load_state_dict`.

        Args:
            args: positional arguments of torch's method.
            kwargs: keyword arguments of torch's method.

        Returns:
            Names of the missing and unexpected parameters, as in torch.

        Raises:
            InputError: The checkpoint belongs to a model with a different architecture.
        """
        try:
            return super().load_state_dict(*args, **kwargs)
        except RuntimeError as error:
            # The first line names the class. Each remaining line reports a missing, unexpected or mismatched
            # parameter.
            title, *misfits = str(error).splitlines()
            if "loading state_dict" not in title or not misfits:
                raise
            first = misfits[0].strip().rstrip(".")
            raise InputError(
                "the checkpoint has another architecture than the model: "
                f"{first if len(first) <= 200 else first[:200] + ' ...'}. Use the --arch and model options "
                "of its training, or train into another --save-dir"
            ) from error


class EncoderDecoder(PluginModel, TransformerModelBase):
    """Encoder-decoder model with the training and decoding interface of fairseq's Transformer.

    A subclass sets ``encoder_class`` and ``decoder_class``.

    Attributes:
        encoder_class: class or function that builds the encoder. It is called with the configuration, the
            source dictionary and the token embedding.
        decoder_class: class or function that builds the decoder. It is called with the configuration, the
            target dictionary and the token embedding.
        shortlist: target subwords that beam search is restricted to (default: None, the whole dictionary).
    """

    encoder_class: Callable[..., nn.Module]
    decoder_class: Callable[..., nn.Module]
    shortlist: Optional[Shortlist] = None

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add an option to a parser for each field of the model's configuration dataclass.

        Args:
            parser: argument parser of a fairseq command.
        """
        # fairseq's Transformer would add the fields of its own nested dataclass.
        super(TransformerModelBase, cls).add_args(parser)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "EncoderDecoder":
        """Build a model for the task.

        Args:
            cfg: fairseq's nested ``TransformerConfig``; see :func:`luna_fairseq.models.luna.nested_config`.
            task: fairseq task with a source and a target dictionary.

        Returns:
            The model, randomly initialized.

        Raises:
            InputError: --sentence-diagonal is set without --diagonal-prior, or a dictionary lacks the symbol
                that separates the sentences of a document.
        """
        dictionaries = task.source_dictionary, task.target_dictionary
        if cfg.sentence_diagonal:
            if not cfg.diagonal_prior:
                raise InputError("--sentence-diagonal needs --diagonal-prior: give both, or neither")
            check_separator(*dictionaries)
        model = super().build_model(cfg, task)
        if cfg.sentence_diagonal:
            model.decoder.separators = tuple(dictionary.index(SEPARATOR) for dictionary in dictionaries)
        return model

    @classmethod
    def build_encoder(cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding) -> Any:
        """Build the encoder, an instance of ``encoder_class``.

        Overrides fairseq's ``TransformerModelBase.build_encoder``.

        Args:
            cfg: fairseq's nested ``TransformerConfig``.
            src_dict: source dictionary.
            embed_tokens: embedding of the source tokens.

        Returns:
            The encoder.
        """
        return cls.encoder_class(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding) -> Any:
        """Build the decoder, an instance of ``decoder_class``.

        Overrides fairseq's ``TransformerModelBase.build_decoder``.

        Args:
            cfg: fairseq's nested ``TransformerConfig``.
            tgt_dict: target dictionary.
            embed_tokens: embedding of the target tokens.

        Returns:
            The decoder.
        """
        return cls.decoder_class(cfg, tgt_dict, embed_tokens)

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Prepare the model for inference, and load a vocabulary shortlist if the option is set."""
        super().prepare_for_inference_(cfg)
        path = getattr(self.decoder.cfg, "shortlist", None)
        if path:
            if self.decoder.adaptive_softmax is not None:
                raise InputError(
                    "a model with an adaptive softmax (--adaptive-softmax-cutoff) has no output projection "
                    "to which a shortlist could apply: leave out --shortlist"
                )
            task = getattr(cfg, "task", None)
            names = [getattr(task, f"{side}_lang", None) or "" for side in ("source", "target")]
            languages = "-".join(names) if all(names) else ""
            dictionaries = self.encoder.dictionary, self.decoder.dictionary
            self.shortlist = Shortlist.load(path, *dictionaries, languages)


class SentenceModelEncoder(RobertaEncoder):
    """RoBERTa's encoder with an LM head that uses this project's activation functions.

    This project computes GELU in float32 even for half-precision inputs.
    """

    def build_lm_head(
        self, embed_dim: int, output_dim: int, activation_fn: str, weight: Optional[nn.Parameter]
    ) -> RobertaLMHead:
        """Build RoBERTa's LM head with one of this project's activation functions.

        Args:
            embed_dim: width of the features.
            output_dim: vocabulary size.
            activation_fn: name of the activation function, such as ``gelu``; see
                :func:`luna_fairseq.models.fairseq_layers.activation_function`.
            weight: weight [output_dim, embed_dim] of the output projection, usually the token embedding. If
                None, a separate weight is created.

        Returns:
            The LM head.
        """
        head = super().build_lm_head(embed_dim, output_dim, activation_fn, weight)
        head.activation_fn = activation_function(activation_fn)
        return head


class SentenceModel(PluginModel, RobertaModel):
    """Masked language model with the interface of fairseq's RoBERTa and a custom sentence encoder.

    A subclass supplies the sentence encoder.

    Args:
        args: namespace of model options.
        encoder: sentence encoder with its LM head.
    """

    def __init__(self, args: Any, encoder: SentenceModelEncoder):
        super().__init__(args, encoder)
        if args.attention_init == "xavier":
            for module in self.modules():
                if isinstance(module, ProjectingAttention):
                    module.reset_projections()

    @classmethod
    def hub_models(cls) -> Dict[str, str]:
        """Return an empty dictionary, since no pretrained models are available for download."""
        return {}

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add an option to a parser for each field of the model's configuration dataclass.

        Args:
            parser: argument parser of a fairseq command.
        """
        # fairseq's RoBERTa would add its own options.
        super(RobertaModel, cls).add_args(parser)

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """Convert a state dict from an older checkpoint, and check the number of position embeddings.

        Extends :meth:`PluginModel.upgrade_state_dict_named`.

        Args:
            state_dict: parameters keyed by name, modified in place.
            name: prefix of the model's parameters.

        Raises:
            InputError: The checkpoint and the model have different dictionaries or numbers of positions.
        """
        super().upgrade_state_dict_named(state_dict, name)
        positions = self.encoder.sentence_encoder.embed_positions
        table = state_dict.get(f"{_SENTENCE_ENCODER}.embed_positions.weight")
        if table is not None and len(table) != positions.num_embeddings:
            # fairseq's position table has extra rows for padding.
            number = len(table) - (positions.num_embeddings - positions.max_positions)
            raise InputError(
                f"the checkpoint has {number} positions, the model has {positions.max_positions}: use "
                f"--max-positions {number}"
            )


def sentence_encoder_options(args: Any) -> Namespace:
    """Return the options of the sentence encoder inside a masked language model.

    The sentence encoder uses learned positions, a layer norm after the embedding, and unscaled embeddings.

    Args:
        args: options of the masked language model.

    Returns:
        Namespace with the options of both the model and its sentence encoder.
    """
    return Namespace(
        **{**vars(args), **_SENTENCE_ENCODER_OPTIONS, "max_source_positions": args.max_positions}
    )


def check_sequences_fit(task: Any, max_positions: int) -> None:
    """Check that a task's longest sequences do not exceed the model's maximum length.

    Args:
        task: fairseq task, which limits the sequence length.
        max_positions: maximum sequence length of the model.

    Raises:
        InputError: The task allows sequences of more than ``max_positions`` tokens.
    """
    # The pretraining task of fairseq 0.12.2 reports no limit, but defines an option for the length.
    longest = task.max_positions() or getattr(getattr(task, "cfg", None), "tokens_per_sample", None)
    if longest is not None and longest > max_positions:
        raise InputError(
            f"the task's sequences have up to {longest} tokens, the model has {max_positions} positions: "
            f"use --tokens-per-sample {max_positions}, or --max-positions {longest}"
        )
