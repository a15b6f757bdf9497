"""Base classes of this project's fairseq models, derived from fairseq's Transformer and RoBERTa.

The base classes check that a checkpoint fits the model, load the checkpoint, and prepare the model for
generation. Subclasses supply the encoder and the decoder.
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
from luna_fairseq.models.bfloat16_linear import use_bfloat16
from luna_fairseq.models.document_translation import check_separator
from luna_fairseq.models.fairseq_layers import activation_function
from luna_fairseq.models.generator_hub import from_pretrained
from luna_fairseq.models.int8 import quantise
from luna_fairseq.models.masked_lm_hub import MaskedLMHub
from luna_fairseq.models.onednn_linear import use_onednn
from luna_fairseq.models.replaced_linears import remove_quant_noise
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


def has_bfloat16_option(cfg: Any) -> bool:
    """Return True if ``cfg`` is the configuration of a generation command with ``--bf16``.

    fairseq's hub interface passes the configuration stored in a checkpoint. The result is then False.
    """
    path = getattr(getattr(cfg, "common_eval", None), "path", None)
    return bool(path and getattr(getattr(cfg, "common", None), "bf16", False))


class PluginModel(BaseFairseqModel):
    """Base class of all models in this project, for loading checkpoints and preparing generation.

    Loading a checkpoint that does not fit the model raises InputError. Checkpoints of the Luna authors' code
    (fairseq-apollo) are converted. For generation on a CPU, linear layers are replaced with faster ones.
    """

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Prepare the model for generation. On a CPU, replace linear layers with faster ones.

        ``retain_dropout_modules``, a list or a comma-separated string, names the dropout modules to which
        ``retain_dropout`` applies. Raises InputError if the model has no dropout module with such a name.
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
        if next(self.parameters()).is_cpu:
            use_onednn(self)

    def choose_generator(self, args: Any) -> Any:
        """Return a function that builds a beam search, with word alignments if ``--print-alignment`` is set.

        A patch in ``engine/entry_points.py`` calls this method when a fairseq task builds its generator.
        """
        alignment = getattr(args, "print_alignment", None)
        return partial(AlignedGenerator, print_alignment=alignment) if alignment else Generator

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """Rename the parameters in a state dict saved by the Luna authors' code (fairseq-apollo), in place.

        Raises InputError if an embedding has a different number of entries in the state dict than in the
        model. ``name`` is the prefix of the model's parameter names.
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
        """Prepare for inference. On a CPU, convert weights to 8 bits (--int8) or bfloat16 (--bf16)."""
        remove_quant_noise(self)
        if getattr(getattr(getattr(self, "decoder", None), "cfg", None), "int8", False):
            quantise(self)
        elif has_bfloat16_option(cfg) and next(self.parameters()).is_cpu:
            use_bfloat16(self)
        super().prepare_for_inference_(cfg)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state dict. Raise InputError, naming the first parameter that does not fit the model."""
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

    Attributes:
        encoder_class: function ``(configuration, source dictionary, token embedding) -> encoder``.
        decoder_class: function ``(configuration, target dictionary, token embedding) -> decoder``.
        shortlist: vocabulary shortlist that restricts beam search, or None.
    """

    encoder_class: Callable[..., nn.Module]
    decoder_class: Callable[..., nn.Module]
    shortlist: Optional[Shortlist] = None

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add a command-line option for each field of the model's dataclass to ``parser``."""
        # fairseq's Transformer would add the fields of its own nested dataclass.
        super(TransformerModelBase, cls).add_args(parser)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a trained model, and return it in a hub interface that translates plain text.

        The arguments are the same as for :func:`luna_fairseq.models.generator_hub.from_pretrained`.

        Example::

            hub = LunaModel.from_pretrained("checkpoints", "checkpoint_best.pt", "../data-bin")
            hub.translate("Guten Morgen!", beam=5)
        """
        return from_pretrained(*args, **kwargs)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "EncoderDecoder":
        """Build a model for ``task`` from fairseq's nested ``TransformerConfig``.

        Raises InputError if --sentence-diagonal is set without --diagonal-prior, or with a dictionary that
        lacks the sentence separator ``<sep>``.
        """
        dictionaries = task.source_dictionary, task.target_dictionary
        # The criterion label_smoothed_cross_entropy_with_alignment needs attention weights during training.
        cfg.attn_in_training = bool(getattr(getattr(task, "cfg", None), "load_alignments", False))
        cfg.separators = None
        if cfg.sentence_diagonal:
            if not cfg.diagonal_prior:
                raise InputError("--sentence-diagonal needs --diagonal-prior: give both, or neither")
            check_separator(*dictionaries)
            cfg.separators = tuple(dictionary.index(SEPARATOR) for dictionary in dictionaries)
        return super().build_model(cfg, task)

    @classmethod
    def build_encoder(cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding) -> Any:
        return cls.encoder_class(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding) -> Any:
        return cls.decoder_class(cfg, tgt_dict, embed_tokens)

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Prepare the model for inference, and load the vocabulary shortlist if ``--shortlist`` is set."""
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
    """RoBERTa's encoder and LM head. The LM head computes GELU in float32 even for half-precision inputs."""

    def build_lm_head(
        self, embed_dim: int, output_dim: int, activation_fn: str, weight: Optional[nn.Parameter]
    ) -> RobertaLMHead:
        head = super().build_lm_head(embed_dim, output_dim, activation_fn, weight)
        head.activation_fn = activation_function(activation_fn)
        return head


class SentenceModel(PluginModel, RobertaModel):
    """Masked language model with the interface of fairseq's RoBERTa. Subclasses supply the encoder."""

    def __init__(self, args: Any, encoder: SentenceModelEncoder):
        super().__init__(args, encoder)
        if args.attention_init == "xavier":
            for module in self.modules():
                if isinstance(module, ProjectingAttention):
                    module.reset_projections()

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        checkpoint_file: str = "model.pt",
        data_name_or_path: str = ".",
        bpe: Optional[str] = None,
        **kwargs: Any,
    ) -> MaskedLMHub:
        """Load a trained model in evaluation mode, and return it in a hub interface with its tokenizer.

        :func:`luna_fairseq.models.generator_hub.from_pretrained` describes the arguments. The dictionary of
        a fine-tuned model is ``input0/dict.txt`` in its folder. ``bpe`` is the name of a fairseq tokenizer.

        Example::

            hub = LunaMaskedLM.from_pretrained("checkpoints", "checkpoint_best.pt", "../data-bin")
            hub.fill_mask("The cat <mask> on the mat.", topk=3)
        """
        if bpe is not None:
            kwargs["bpe"] = bpe
        paths = model_name_or_path, checkpoint_file, data_name_or_path
        return from_pretrained(*paths, hub=MaskedLMHub, load_checkpoint_heads=True, **kwargs)

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add a command-line option for each field of the model's dataclass to ``parser``."""
        # fairseq's RoBERTa would add its own options.
        super(RobertaModel, cls).add_args(parser)

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """Convert a state dict of the Luna authors' code, and check its number of position embeddings.

        Raises InputError if an embedding has a different number of entries than in the model.
        """
        super().upgrade_state_dict_named(state_dict, name)
        positions = self.encoder.sentence_encoder.embed_positions
        table = state_dict.get(f"{_SENTENCE_ENCODER}.embed_positions.weight")
        # If the model has no positions, load_state_dict names the unexpected weight.
        if table is not None and positions is not None and len(table) != positions.num_embeddings:
            # fairseq's position table has extra rows for padding.
            number = len(table) - (positions.num_embeddings - positions.max_positions)
            raise InputError(
                f"the checkpoint has {number} positions, the model has {positions.max_positions}: use "
                f"--max-positions {number}"
            )


def sentence_encoder_options(args: Any) -> Namespace:
    """Return a masked language model's options, extended with the options that its encoder requires."""
    return Namespace(
        **{**vars(args), **_SENTENCE_ENCODER_OPTIONS, "max_source_positions": args.max_positions}
    )


def check_sequences_fit(task: Any, max_positions: int) -> None:
    """Raise InputError if a task's maximum sequence length exceeds ``max_positions``."""
    # The pretraining task of fairseq 0.12.2 reports no limit, but defines an option for the length.
    longest = task.max_positions() or getattr(getattr(task, "cfg", None), "tokens_per_sample", None)
    if longest is not None and longest > max_positions:
        raise InputError(
            f"the task's sequences have up to {longest} tokens, the model has {max_positions} positions: "
            f"use --tokens-per-sample {max_positions}, or --max-positions {longest}"
        )
