"""Luna encoder with the interface of fairseq's encoders.

:class:`FairseqLunaEncoder` connects :class:`luna_fairseq.modules.LunaEncoder` to fairseq's options,
dictionary and output format.
"""

import logging
from typing import Any, Callable, Dict, List, Optional

import torch
from torch import Tensor, nn

from fairseq.data import Dictionary
from fairseq.models import FairseqEncoder
from fairseq.modules import LayerNorm
from luna_fairseq.anchored.factories import choose_encoder_attentions
from luna_fairseq.anchored.segments import DENSE_LENGTH
from luna_fairseq.anchored.sentence_places import sentence_numbers
from luna_fairseq.errors import InputError
from luna_fairseq.models.fairseq_layers import (
    FairseqPositions,
    NoTorchScript,
    fairseq_builders,
    read_options,
    refuse_tracing,
)
from luna_fairseq.modules.luna_encoder import EncoderAttentions, LunaEncoder
from luna_fairseq.modules.options import EncoderOptions

logger = logging.getLogger(__name__)
# Translations lose words if a row of P represents more source tokens than this.
TOKENS_A_ROW = 16


def _longest_complete_source(cfg: Any) -> Optional[int]:
    """Return the number of source tokens above which translations lose words, or None if they never do."""
    # Softmax attention and a look-up of all rows read every token beside P. A look-up of fewer rows reads
    # every token of a short source only.
    if cfg.cross_attention == "softmax" or cfg.packed_lookup >= cfg.projection_length:
        return None
    return max(TOKENS_A_ROW * cfg.projection_length, DENSE_LENGTH if cfg.packed_lookup else 0)


class FairseqLunaEncoder(NoTorchScript, LunaEncoder, FairseqEncoder):
    """Luna encoder with the interface of fairseq's encoders.

    Args:
        cfg: fairseq's TransformerConfig, extended with Luna's options.
        dictionary: source dictionary.
        embed_tokens: token embedding.
        sentence_encoder: build the encoder of a classifier or masked language model.
        packed_is_read: True if a decoder or a classification head uses the packed sequence P after the last
            layer. If False, the final layer norm of P has no weight or bias in a sentence encoder.
        layer_repeats: number of times the stack of layers is applied, each time with the same weights.
        choose_attentions: function ``(cfg, encoder options) -> factory`` of attention modules.
    """

    def __init__(
        self,
        cfg: Any,
        dictionary: Dictionary,
        embed_tokens: nn.Embedding,
        sentence_encoder: bool = False,
        packed_is_read: bool = True,
        layer_repeats: int = 1,
        choose_attentions: Callable[..., EncoderAttentions] = choose_encoder_attentions,
    ):
        options = read_options(
            EncoderOptions,
            cfg,
            sentence_encoder=sentence_encoder,
            packed_is_read=packed_is_read,
            layer_repeats=layer_repeats,
        )
        attentions = choose_attentions(cfg, options)
        builders = fairseq_builders(cfg, cfg.encoder.layerdrop)
        super().__init__(options, embed_tokens, attentions, builders, dictionary=dictionary)
        self.cfg = cfg
        self.register_buffer("version", torch.Tensor([3]))  # expected in checkpoints by fairseq
        self.max_source_positions = cfg.max_source_positions
        self.separators = getattr(cfg, "separators", None)
        self.sentence_encoder = sentence_encoder
        self.has_new_packed_norm = False
        # Classifiers and masked language models never warn.
        self.warns_above = None if sentence_encoder else _longest_complete_source(cfg)
        self.num_layers = len(self.layers)

    def add_packed_norm(self) -> None:
        """Add a weight and a bias to the final layer norm of the packed sequence P.

        A classification head on P needs both. If a checkpoint lacks them, they keep their initial values.
        """
        norm = self.packed_layer_norm
        if norm is not None and norm.weight is None:
            like = self.packed_embedding.weight
            norm = LayerNorm(norm.normalized_shape, export=self.cfg.export)
            self.packed_layer_norm = norm.to(device=like.device, dtype=like.dtype)
            self.has_new_packed_norm = True

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Load parameters. Add, rename or remove the final layer norm of the packed sequence P if needed."""
        if self.sentence_encoder and self.packed_layer_norm is not None:
            self._adapt_packed_norm(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _adapt_packed_norm(self, state_dict: Dict[str, Tensor], prefix: str) -> None:
        """Add, remove or rename the final layer norm of P in a state dict, so that it fits this encoder."""
        layers = f"{prefix}layers."
        depths = [int(name[len(layers) :].split(".")[0]) for name in state_dict if name.startswith(layers)]
        for part in ("weight", "bias"):
            name = f"{prefix}packed_layer_norm.{part}"
            # In the authors' code, the norm belongs to the last layer.
            authors_name = f"{layers}{max(depths, default=0)}.packed_layer_norm.{part}"
            if not self.options.normalize_before and authors_name in state_dict:
                state_dict[name] = state_dict.pop(authors_name)
            value = getattr(self.packed_layer_norm, part)
            if value is None:
                state_dict.pop(name, None)
            elif self.has_new_packed_norm:
                state_dict.setdefault(name, value)

    def max_positions(self) -> int:
        """Return the maximum number of source tokens."""
        if self.embed_positions is None:
            return self.max_source_positions
        return min(self.max_source_positions, self.embed_positions.max_positions)

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> Dict[str, Tensor]:
        """Add the entry ``version`` that fairseq expects to a state dict, in place, if it is missing."""
        state_dict.setdefault(f"{name}.version", self.version.clone())
        return state_dict

    def check_length(self, padding_mask: Tensor) -> None:
        """Raise InputError if a source has more tokens than the model's maximum length.

        A translation model also warns once if the packed sequence P has too few rows for such a source, and
        the decoder reads some tokens through P alone. ``padding_mask`` [B, S] is True at padding.
        """
        length, limit = padding_mask.size(1), self.max_positions()
        if length <= (limit if self.warns_above is None else min(limit, self.warns_above)):
            return
        length = int((~padding_mask).sum(dim=1).max())
        if length > limit:
            option = "--max-positions" if self.sentence_encoder else "--max-source-positions"
            raise InputError(
                f"a source sentence has {length} tokens, the model's positions end at {limit}: shorten it, "
                f"or train with a larger {option}"
            )
        if self.warns_above is not None and length > self.warns_above:
            self.warns_above = None
            logger.warning(
                f"a source has {length:,} tokens and P {self.cfg.projection_length} rows "
                "(--projection-length): translations lose words if a row of P represents more than "
                f"{TOKENS_A_ROW} tokens; use --projection-length {-(-length // TOKENS_A_ROW)} or more"
            )

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
        num_outputs: Optional[int] = None,
    ) -> Dict[str, List[Any]]:
        """Encode B source sentences [B, S] of S tokens, padded on the left or on the right.

        ``token_embeddings`` [B, S, C] of width C replace the model's token embeddings. If ``num_outputs`` is
        given, outputs are computed only for that many leading tokens. ``src_lengths`` is ignored.

        Returns:
            A dictionary of lists: the entries of fairseq's encoder output and five additional entries.

            - ``source``: padding masks of the tokens and of P, a :class:`luna_fairseq.modules.Source`
            - ``packed_out``: packed sequence P [L, B, C] after the last layer, with L rows
            - ``packed_padding_mask``: mask [B, L], True at padding of P; an empty list if there is no padding
            - ``packed_states``: P before the first and after each layer; empty without ``return_all_hiddens``
            - ``sentences``: empty until :meth:`reorder_encoder_out` adds each hypothesis's sentence index
        """
        refuse_tracing()
        padding_mask = src_tokens.eq(self.padding_idx)
        self.check_length(padding_mask)
        if isinstance(self.embed_positions, FairseqPositions):
            self.embed_positions.extend(src_tokens.size(1))
        out = super().forward(
            src_tokens,
            embeddings=token_embeddings,
            padding_mask=padding_mask,
            return_states=return_all_hiddens,
            num_outputs=num_outputs,
        )
        source = out.source
        if self.separators is not None:
            numbers = sentence_numbers(src_tokens.eq(self.separators[0]), padding_mask)
            source = source._replace(sentence_numbers=numbers)
        return {
            "source": [source],
            "encoder_out": [out.x],
            "encoder_padding_mask": [padding_mask],
            "encoder_embedding": [],
            "encoder_states": list(out.states),
            "packed_out": [out.packed],
            "packed_padding_mask": [] if source.packed_padding_mask is None else [source.packed_padding_mask],
            "packed_states": list(out.packed_states),
            "src_tokens": [src_tokens],
            "src_lengths": [(~padding_mask).sum(dim=1, keepdim=True)],
            "sentences": [],
        }

    def reorder_encoder_out(
        self, encoder_out: Dict[str, List[Any]], new_order: Tensor
    ) -> Dict[str, List[Any]]:
        """Reorder the hypotheses: hypothesis i of the result continues hypothesis ``new_order[i]``.

        Only the entry ``sentences`` changes. It holds the index of each hypothesis's source sentence.
        """
        old = encoder_out["sentences"]
        new = old[0].index_select(0, new_order) if old else new_order
        return {**encoder_out, "sentences": [new]}
