"""Base classes of the models, which derive from fairseq's Transformer and RoBERTa.

A subclass supplies the encoder and decoder. The base classes load checkpoints, check that the checkpoints fit
the model, and prepare models for generation.
"""

from argparse import Namespace
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
from luna_fairseq.models.shortlist import Shortlist
from luna_fairseq.modules.heads import ProjectingAttention
from luna_fairseq.text.documents import SEPARATOR

_SENTENCE_ENCODER = "encoder.sentence_encoder"
# Options of the translation models' encoder that turn it into a sentence encoder.
_SENTENCE_ENCODER_OPTIONS = {
    "encoder_learned_pos": True,
    "no_scale_embedding": True,
    "layernorm_embedding": True,
}


class LoadsWhatFits(BaseFairseqModel):
    """Base class of all models, which explains in one message why a checkpoint does not fit.

    The class also loads checkpoints of the authors' code (fairseq-apollo), and speeds up generation on a CPU.
    """

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Prepare the model for generation as fairseq does, and speed up linear layers on a CPU.

        Args:
            kwargs: options of fairseq. ``retain_dropout_modules`` names the dropouts that stay active: a list
                of names, or a string of names separated by commas.

        Raises:
            InputError: ``retain_dropout_modules`` has a name that no dropout of the model has.
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

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """Upgrade a state dict as fairseq does, and translate parameter names of the authors' code.

        Args:
            state_dict: parameters of a checkpoint by name, changed in place.
            name: prefix of the model's parameters.

        Raises:
            InputError: The sizes of the checkpoint's dictionaries differ from those of the data.
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
            # fairseq removes the last layer norm of weights without a version number, such as the averages of
            # --store-ema.
            version = getattr(self.get_submodule(part), "version", None)
            if version is not None:
                state_dict.setdefault(f"{part}.version", version.clone())
        super().upgrade_state_dict_named(state_dict, name)

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Prepare the model for inference as fairseq does, and quantise it to 8 bits if ``int8`` is set.

        Args:
            cfg: configuration of the generation.

        Raises:
            InputError: ``int8`` is set, and the model is on a GPU or in half precision.
        """
        if getattr(getattr(getattr(self, "decoder", None), "cfg", None), "int8", False):
            quantise(self)
        super().prepare_for_inference_(cfg)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load parameters as torch does.

        Args:
            args: positional arguments of :meth:`torch.nn.Module.load_state_dict`.
            kwargs: keyword arguments of :meth:`torch.nn.Module.load_state_dict`.

        Returns:
            The missing and the unexpected names, as torch returns them.

        Raises:
            InputError: The checkpoint belongs to another architecture.
        """
        try:
            return super().load_state_dict(*args, **kwargs)
        except RuntimeError as error:
            # The first line names the class. Every other line reports a missing, unexpected or differently
            # shaped parameter.
            title, *misfits = str(error).splitlines()
            if "loading state_dict" not in title or not misfits:
                raise
            first = misfits[0].strip().rstrip(".")
            raise InputError(
                "the checkpoint has another architecture than the model: "
                f"{first if len(first) <= 200 else first[:200] + ' ...'}. Use the --arch and model options "
                "of its training, or train into another --save-dir"
            ) from error


class EncoderDecoder(LoadsWhatFits, TransformerModelBase):
    """fairseq's Transformer with the encoder and decoder of a subclass.

    Attributes:
        encoder_class: class or function that builds the encoder from (configuration, dictionary, embedding).
        decoder_class: class or function that builds the decoder from the same arguments.
        shortlist: candidates to which beam search is restricted (default: None, all target pieces).
    """

    encoder_class: Callable[..., nn.Module]
    decoder_class: Callable[..., nn.Module]
    shortlist: Optional[Shortlist] = None

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add an option to ``parser`` for each field of the model's dataclass."""
        # fairseq's Transformer would add the fields of its own, nested dataclass.
        super(TransformerModelBase, cls).add_args(parser)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "EncoderDecoder":
        """Build the model for the dictionaries of a task.

        Args:
            cfg: nested configuration, see :func:`luna_fairseq.models.luna.nested_config`.
            task: fairseq task with a source and a target dictionary.

        Returns:
            The model, with random weights.

        Raises:
            InputError: --sentence-diagonal is given without --diagonal-prior, or the dictionaries have no
                sentence separator.
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
        """Build the encoder for a nested configuration.

        Args:
            cfg: nested configuration of the model.
            src_dict: source dictionary.
            embed_tokens: embedding of the source tokens.

        Returns:
            The encoder.
        """
        return cls.encoder_class(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding) -> Any:
        """Build the decoder for a nested configuration.

        Args:
            cfg: nested configuration of the model.
            tgt_dict: target dictionary.
            embed_tokens: embedding of the target tokens.

        Returns:
            The decoder.
        """
        return cls.decoder_class(cfg, tgt_dict, embed_tokens)

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Prepare the model for inference as fairseq does, and load the shortlist if there is one.

        Args:
            cfg: configuration of the generation.

        Raises:
            InputError: The shortlist is no lexicon or belongs to another dictionary, or the model has an
                adaptive softmax.
        """
        super().prepare_for_inference_(cfg)
        path = getattr(self.decoder.cfg, "shortlist", None)
        if path:
            if self.decoder.adaptive_softmax is not None:
                raise InputError(
                    "a model with an adaptive softmax (--adaptive-softmax-cutoff) has no output projection "
                    "to which a shortlist could apply: leave out --shortlist"
                )
            self.shortlist = Shortlist.load(path, self.encoder.dictionary, self.decoder.dictionary)


class SentenceModelEncoder(RobertaEncoder):
    """RoBERTa's encoder and LM head, with this project's activation functions."""

    def build_lm_head(
        self, embed_dim: int, output_dim: int, activation_fn: str, weight: Optional[nn.Parameter]
    ) -> RobertaLMHead:
        """Build RoBERTa's LM head.

        Args:
            embed_dim: width of the features.
            output_dim: number of entries of the dictionary.
            activation_fn: name of an activation function, see
                :func:`luna_fairseq.models.fairseq_layers.activation_function`.
            weight: matrix of the output projection [output_dim, embed_dim]; None learns a separate matrix.
        """
        head = super().build_lm_head(embed_dim, output_dim, activation_fn, weight)
        head.activation_fn = activation_function(activation_fn)
        return head


class SentenceModel(LoadsWhatFits, RobertaModel):
    """fairseq's RoBERTa with the sentence encoder of a subclass.

    Args:
        args: namespace with the options of the model.
        encoder: sentence encoder with the LM head.
    """

    def __init__(self, args: Any, encoder: SentenceModelEncoder):
        super().__init__(args, encoder)
        if args.attention_init == "xavier":
            for module in self.modules():
                if isinstance(module, ProjectingAttention):
                    module.reset_projections()

    @classmethod
    def hub_models(cls) -> Dict[str, str]:
        """Return an empty dictionary, because no pretrained model can be downloaded."""
        return {}

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add an option to ``parser`` for each field of the model's dataclass."""
        # fairseq's RoBERTa would add its own options.
        super(RobertaModel, cls).add_args(parser)

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """Upgrade a state dict as fairseq does, and compare its number of positions with that of the model.

        Args:
            state_dict: parameters of a checkpoint by name, changed in place.
            name: prefix of the model's parameters.

        Raises:
            InputError: The checkpoint has another dictionary or number of positions.
        """
        super().upgrade_state_dict_named(state_dict, name)
        positions = self.encoder.sentence_encoder.embed_positions
        table = state_dict.get(f"{_SENTENCE_ENCODER}.embed_positions.weight")
        if table is not None and len(table) != positions.num_embeddings:
            # fairseq's table of positions has extra rows for padding.
            number = len(table) - (positions.num_embeddings - positions.max_positions)
            raise InputError(
                f"the checkpoint has {number} positions, the model has {positions.max_positions}: use "
                f"--max-positions {number}"
            )


def sentence_encoder_options(args: Any) -> Namespace:
    """Return the flat options of the sentence encoder of a masked language model.

    Args:
        args: options of the whole model.
    """
    return Namespace(
        **{**vars(args), **_SENTENCE_ENCODER_OPTIONS, "max_source_positions": args.max_positions}
    )


def check_sequences_fit(task: Any, max_positions: int) -> None:
    """Check that the sequences of a task are no longer than the model's positions.

    Args:
        task: fairseq task.
        max_positions: number of positions of the model.

    Raises:
        InputError: The task allows longer sequences.
    """
    # The pretraining task of fairseq 0.12.2 reports no limit, but has an option for the length.
    longest = task.max_positions() or getattr(getattr(task, "cfg", None), "tokens_per_sample", None)
    if longest is not None and longest > max_positions:
        raise InputError(
            f"the task's sequences have up to {longest} tokens, the model has {max_positions} positions: "
            f"use --tokens-per-sample {max_positions}, or --max-positions {longest}"
        )
