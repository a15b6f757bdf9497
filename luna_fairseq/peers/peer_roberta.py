"""The masked language model with any attention: ``--arch peer_roberta --attention NAME``."""

from argparse import Namespace
from typing import Any, Dict, Optional

from torch import Tensor, nn

from fairseq.data import Dictionary
from fairseq.models import register_model
from fairseq.models.roberta import RobertaEncoder, RobertaModel
from fairseq.models.roberta.model import RobertaLMHead
from luna_fairseq.errors import InputError
from luna_fairseq.models.architectures import Presets, register_architectures
from luna_fairseq.models.authors_checkpoint import check_dictionary, check_positions, refuse_misfit
from luna_fairseq.models.luna import flat_options, nested_config
from luna_fairseq.modules.luna_layer import activation_function
from luna_fairseq.peers.config import PeerRobertaConfig
from luna_fairseq.peers.layers import PeerEncoder

# What sets a sentence encoder apart from the translation model's, besides its options.
_SENTENCE_ENCODER = {"encoder_learned_pos": True, "no_scale_embedding": True, "layernorm_embedding": True}


class PeerRobertaEncoder(RobertaEncoder):
    """RoBERTa's encoder and LM head, with a :class:`PeerEncoder` as its sentence encoder."""

    def build_encoder(self, args: Any, dictionary: Dictionary, embed_tokens: nn.Embedding) -> PeerEncoder:
        options = {**vars(args), **_SENTENCE_ENCODER, "max_source_positions": args.max_positions}
        return PeerEncoder(nested_config(Namespace(**options)), dictionary, embed_tokens)

    def build_lm_head(
        self, embed_dim: int, output_dim: int, activation_fn: str, weight: Optional[nn.Parameter]
    ) -> RobertaLMHead:
        head = super().build_lm_head(embed_dim, output_dim, activation_fn, weight)
        head.activation_fn = activation_function(activation_fn)
        return head


@register_model("peer_roberta", dataclass=PeerRobertaConfig)
class PeerRoberta(RobertaModel):
    """fairseq's RoBERTa; nothing but its attention differs from one peer to another.

    Args:
        args: a :class:`PeerRobertaConfig` or a namespace with its fields
        encoder: :class:`PeerRobertaEncoder`
    """

    @classmethod
    def hub_models(cls) -> Dict[str, str]:
        return {}

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Options of :class:`PeerRobertaConfig`; defaults come from the architecture, then from the
        dataclass."""
        super(RobertaModel, cls).add_args(parser)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "PeerRoberta":
        """Build the model for the dictionary of ``task``.

        Raises:
            InputError: an attention that has no bidirectional form, or a task with longer sequences than
                positions
        """
        args = Namespace(**flat_options(cfg, PeerRobertaConfig()))
        # The pretraining task of fairseq 0.12.2 names no limit, but has the option.
        longest = task.max_positions() or getattr(getattr(task, "cfg", None), "tokens_per_sample", None)
        if longest is not None and longest > args.max_positions:
            raise InputError(
                f"sequences of the task have up to {longest} tokens, more than the model's "
                f"{args.max_positions} positions: "
                f"give --max-positions {longest}, or --tokens-per-sample {args.max_positions}"
            )
        return cls(args, PeerRobertaEncoder(args, task.source_dictionary))

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """fairseq's. Raises InputError when the checkpoint has another dictionary or number of positions."""
        check_dictionary(state_dict, self)
        positions = self.encoder.sentence_encoder.embed_positions
        check_positions(state_dict, "encoder.sentence_encoder.embed_positions.weight", positions)
        super().upgrade_state_dict_named(state_dict, name)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """fairseq's. Raises InputError when the checkpoint is of another architecture."""
        with refuse_misfit():
            return super().load_state_dict(*args, **kwargs)


_SMALLER = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
# What each architecture sets apart from PeerRobertaConfig's defaults: the sizes of luna_small_512 and
# luna_tiny_512.
ARCHITECTURES: Presets = {
    "peer_roberta": {},
    "peer_roberta_small": dict(zip(_SMALLER, (4, 256, 1024, 4))),
    "peer_roberta_tiny": dict(zip(_SMALLER, (2, 128, 512, 2))),
}
register_architectures("peer_roberta", ARCHITECTURES)
