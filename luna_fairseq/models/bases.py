"""What the models of one kind share, whatever attention they are made of: the house's side of fairseq's
Transformer and of its RoBERTa."""

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
from luna_fairseq.models.few_rows import use_few_rows
from luna_fairseq.models.int8 import quantise
from luna_fairseq.modules.heads import ProjectingAttention
from luna_fairseq.text.documents import SEPARATOR

_SENTENCE_ENCODER = "encoder.sentence_encoder"
# What sets a sentence encoder apart from a translation model's, besides its options.
_OF_SENTENCES = {"encoder_learned_pos": True, "no_scale_embedding": True, "layernorm_embedding": True}


class LoadsWhatFits(BaseFairseqModel):
    """A model that says in one line why a checkpoint or a name of a part is not its own."""

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """fairseq's.

        Raises:
            InputError: ``retain_dropout_modules`` (a list, or names with commas between them) has a name that
                none of its dropouts has
        """
        names = kwargs.get("retain_dropout_modules")
        if names:
            names = names.split(",") if isinstance(names, str) else list(names)
            known = {part.module_name for part in self.modules() if isinstance(part, FairseqDropout)} - {None}
            for name in names:
                if name not in known:
                    raise InputError(
                        f"--retain-dropout-modules {name}: what has dropout is called "
                        f"{', '.join(sorted(known))} (names with commas between them)"
                    )
            kwargs["retain_dropout_modules"] = names
        super().make_generation_fast_(**kwargs)
        use_few_rows(self)

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """fairseq's, for checkpoints of the authors' code, too.

        Raises:
            InputError: the checkpoint has other dictionaries
        """
        translate_names(state_dict)
        for part, which in (("encoder", "encoder "), ("decoder", "decoder "), (_SENTENCE_ENCODER, "")):
            table = state_dict.get(f"{part}.embed_tokens.weight")
            if table is None:
                continue
            ours = getattr(self.get_submodule(part).embed_tokens, "num_embeddings", len(table))
            if len(table) != ours:
                raise InputError(
                    f"the checkpoint's {which}dictionary has {len(table)} entries, the data's has {ours}: "
                    "use data preprocessed with the dictionaries the model was trained with"
                )
            # fairseq takes weights without a version for those of a model without a last layer norm, and
            # removes it. Its averaged weights (--store-ema) have no version.
            version = getattr(self.get_submodule(part), "version", None)
            if version is not None:
                state_dict.setdefault(f"{part}.version", version.clone())
        super().upgrade_state_dict_named(state_dict, name)

    def prepare_for_inference_(self, cfg: Any) -> None:
        """fairseq's; and weights in 8 bits where the model's options say so."""
        if getattr(getattr(getattr(self, "decoder", None), "cfg", None), "int8", False):
            quantise(self)
        super().prepare_for_inference_(cfg)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """fairseq's. Raises InputError when the checkpoint is of another architecture."""
        try:
            return super().load_state_dict(*args, **kwargs)
        except RuntimeError as error:
            # The first line names the class; every other is about missing, unexpected or differently shaped
            # parameters.
            title, *misfits = str(error).splitlines()
            if "loading state_dict" not in title or not misfits:
                raise
            first = misfits[0].strip().rstrip(".")
            raise InputError(
                "the checkpoint is of another architecture than the model: "
                f"{first if len(first) <= 200 else first[:200] + ' ...'}; give the --arch and model options "
                "it was trained with, or train into another --save-dir"
            ) from error


class EncoderDecoder(LoadsWhatFits, TransformerModelBase):
    """fairseq's Transformer with another encoder and decoder."""

    encoder_class: Callable[..., nn.Module]
    decoder_class: Callable[..., nn.Module]

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Options of the model's dataclass; defaults come from the architecture, then from the dataclass."""
        super(TransformerModelBase, cls).add_args(parser)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "EncoderDecoder":
        """fairseq's; ``cfg`` is nested. Raises InputError for --sentence-diagonal without --diagonal-prior or
        without a separator of sentences in the dictionaries."""
        dictionaries = task.source_dictionary, task.target_dictionary
        if cfg.sentence_diagonal:
            if not cfg.diagonal_prior:
                raise InputError("--sentence-diagonal is of a diagonal: give --diagonal-prior, too")
            check_separator(*dictionaries)
        model = super().build_model(cfg, task)
        if cfg.sentence_diagonal:
            model.decoder.separators = tuple(dictionary.index(SEPARATOR) for dictionary in dictionaries)
        return model

    @classmethod
    def build_encoder(cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding) -> Any:
        """The encoder; ``cfg`` is nested."""
        return cls.encoder_class(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding) -> Any:
        """The decoder; ``cfg`` is nested."""
        return cls.decoder_class(cfg, tgt_dict, embed_tokens)


class SentenceModelEncoder(RobertaEncoder):
    """RoBERTa's encoder and LM head, with the activations that this project knows."""

    def build_lm_head(
        self, embed_dim: int, output_dim: int, activation_fn: str, weight: Optional[nn.Parameter]
    ) -> RobertaLMHead:
        """fairseq's, with ``activation_fn`` also of the names that it does not have."""
        head = super().build_lm_head(embed_dim, output_dim, activation_fn, weight)
        head.activation_fn = activation_function(activation_fn)
        return head


class SentenceModel(LoadsWhatFits, RobertaModel):
    """fairseq's RoBERTa with another sentence encoder."""

    def __init__(self, args: Any, encoder: SentenceModelEncoder):
        super().__init__(args, encoder)
        if args.attention_init == "xavier":
            for module in self.modules():
                if isinstance(module, ProjectingAttention):
                    module.reset_projections()

    @classmethod
    def hub_models(cls) -> Dict[str, str]:
        """None: nothing of ours is to be downloaded."""
        return {}

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Options of the model's dataclass; defaults come from the architecture, then from the dataclass."""
        super(RobertaModel, cls).add_args(parser)

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """fairseq's. Raises InputError when the checkpoint has another dictionary or number of positions."""
        super().upgrade_state_dict_named(state_dict, name)
        positions = self.encoder.sentence_encoder.embed_positions
        table = state_dict.get(f"{_SENTENCE_ENCODER}.embed_positions.weight")
        if table is not None and len(table) != positions.num_embeddings:
            theirs = len(table) - (positions.num_embeddings - positions.max_positions)
            raise InputError(
                f"the checkpoint has {theirs} positions, the model {positions.max_positions}: give "
                f"--max-positions {theirs}"
            )


def sentence_encoder_options(args: Any) -> Namespace:
    """Options of the encoder inside a sentence model of ``args``; flat."""
    return Namespace(**{**vars(args), **_OF_SENTENCES, "max_source_positions": args.max_positions})


def check_sequences_fit(task: Any, max_positions: int) -> None:
    """Raise InputError for a task with longer sequences than a model of ``max_positions`` reads."""
    # The pretraining task of fairseq 0.12.2 names no limit, but has the option.
    longest = task.max_positions() or getattr(getattr(task, "cfg", None), "tokens_per_sample", None)
    if longest is not None and longest > max_positions:
        raise InputError(
            f"the task's sequences have up to {longest} tokens, the model has {max_positions} positions: "
            f"give --tokens-per-sample {max_positions}, or --max-positions {longest}"
        )
