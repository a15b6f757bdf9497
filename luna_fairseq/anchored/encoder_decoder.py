"""The Luna encoder and decoder with the attentions of this room."""

from typing import Any, Optional, Tuple, Type

from torch import Tensor

from luna_fairseq.anchored.attention import QUERY_ORIGIN, QUERY_PLACE, AnchoredSelfAttention, masks_of
from luna_fairseq.anchored.causal import DecayingCausalAttention
from luna_fairseq.anchored.segments import find_layout
from luna_fairseq.anchored.softmax_cross import cross_attention
from luna_fairseq.anchored.target_places import target_places
from luna_fairseq.errors import InputError
from luna_fairseq.modules.fairseq_layers import attention_options
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention
from luna_fairseq.modules.luna_decoder import LunaDecoder
from luna_fairseq.modules.luna_encoder import LunaEncoder
from luna_fairseq.modules.sentences import Sentences


def encoder_class(cfg: Any) -> Type[LunaEncoder]:
    """The encoder for the options of a model: the paper's where they ask for nothing else."""
    return AnchoredEncoder if cfg.anchored_packed or cfg.local_parts else LunaEncoder


def decoder_class(cfg: Any) -> Type[LunaDecoder]:
    """The decoder, likewise."""
    extended = cfg.anchored_packed or cfg.packed_lookup or cfg.diagonal_prior or cfg.causal_decay
    return AnchoredDecoder if extended or cfg.cross_attention == "softmax" else LunaDecoder


def check_extension(cfg: Any) -> None:
    """Raise InputError for options that need anchors and are without them, or do not go together."""
    needs = {
        "packed_lookup": "only rows with a place have tokens of their own",
        "local_parts": "only rows with a place have tokens of their own",
        "diagonal_prior": "only rows with a place lie near one",
    }
    for name, why in needs.items():
        if getattr(cfg, name) and not cfg.anchored_packed:
            raise InputError(f"--{name.replace('_', '-')} needs --anchored-packed: {why}")
    if cfg.packed_lookup and cfg.cross_attention == "softmax":
        raise InputError(
            "--packed-lookup and --cross-attention softmax do not go together: give --packed-lookup 0"
        )


class AnchoredEncoder(LunaEncoder):
    """The Luna encoder whose rows of P have places where --anchored-packed asks for them."""

    def build_attention(self, cfg: Any) -> LunaAttention:
        check_extension(cfg)
        if not cfg.anchored_packed:
            return super().build_attention(cfg)
        options = attention_options(cfg, cfg.encoder)
        return AnchoredSelfAttention(**options, anchor_strength=cfg.anchor_strength, window=cfg.local_parts)


class AnchoredDecoder(LunaDecoder):
    """The Luna decoder with what the options of the extension ask for.

    Attributes:
        separators: with --sentence-diagonal, what stands between sentences of the source and of the target
    """

    separators: Optional[Tuple[int, int]] = None

    def build_self_attention(self, cfg: Any) -> LunaCausalAttention:
        if not cfg.causal_decay:
            return super().build_self_attention(cfg)
        return DecayingCausalAttention(**self.causal_options(cfg))

    def build_encoder_attention(self, cfg: Any, update_packed: bool) -> LunaAttention:
        check_extension(cfg)
        return cross_attention(cfg, attention_options(cfg, cfg.decoder), update_packed)

    def prepare(
        self,
        sentences: Sentences,
        prev_output_tokens: Tensor,
        context: Optional[Tensor],
        packed: Optional[Tensor],
    ) -> None:
        """Add the number of each new token in its target, padding not counted, for a diagonal, and the layout
        of a look-up, which depends on lengths and so cannot be found within compiled layers."""
        # In decoding the first step finds it, and the cache keeps what it was needed for.
        if self.cfg.packed_lookup and context is not None and sentences.incremental_state is None:
            masks = masks_of(packed, context, sentences)
            sentences.once("layout", lambda: find_layout(*masks, self.cfg.packed_lookup))
        if self.cfg.diagonal_prior:
            source, new = sentences.source_tokens, prev_output_tokens.size(1)
            new = new if sentences.incremental_state is None else 1
            places = target_places(prev_output_tokens, source, self.padding_idx, self.separators)
            for name, x in zip((QUERY_PLACE, QUERY_ORIGIN), places):
                sentences.shared[name] = x if x is None else x[:, -new:]
