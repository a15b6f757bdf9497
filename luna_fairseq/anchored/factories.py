"""Options of anchored attention, and the factories that build the attention modules selected by the options.

Anchored attention is Luna attention with a bias toward nearby tokens. This module does not need fairseq.
Shapes: batch size B, S context tokens, L rows of the packed sequence P, width C.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.anchored.attention import AnchoredCrossAttention, AnchoredSelfAttention
from luna_fairseq.anchored.causal import DecayingCausalAttention
from luna_fairseq.anchored.geometry import Needs, TargetPlaces, context_geometry, measure_places
from luna_fairseq.anchored.sentence_places import (
    UnfinishedSentence,
    count_tokens_before_sentence,
    number_within_sentences,
)
from luna_fairseq.anchored.softmax_cross import SoftmaxCrossAttention
from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import Geometry, Source, Target
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.luna_attention import attention_arguments
from luna_fairseq.modules.luna_causal_attention import causal_arguments
from luna_fairseq.modules.luna_decoder import DecoderAttentions
from luna_fairseq.modules.luna_encoder import EncoderAttentions
from luna_fairseq.modules.memory import DecoderMemory
from luna_fairseq.modules.options import DecoderOptions, EncoderOptions

CROSS_ATTENTIONS = ("luna", "softmax")


class ExtensionOptions(NamedTuple):
    """Options of anchored attention and related features, named like the command-line options.

    ``luna_fairseq/models/options.py`` describes each option.
    """

    anchored_packed: bool = False
    anchor_strength: float = 4.0
    local_parts: int = 0
    cross_attention: str = "luna"
    packed_lookup: int = 0
    diagonal_prior: bool = False
    causal_decay: bool = False


def extension_options(cfg: Any) -> ExtensionOptions:
    """Read the options of anchored attention and related features from the attributes of a configuration.

    Raises InputError if an option requires another option that is not set, or excludes one that is set.
    """
    defaults = ExtensionOptions()
    values: Any = {name: getattr(cfg, name, value) for name, value in defaults._asdict().items()}
    options = ExtensionOptions(**values)
    needs = {
        "packed_lookup": "a look-up reads the segments of anchored rows",
        "local_parts": "a window consists of the segments of anchored rows",
        "diagonal_prior": "only anchored rows have a distance from the diagonal",
    }
    for name, why in needs.items():
        if getattr(options, name) and not options.anchored_packed:
            raise InputError(f"--{name.replace('_', '-')} needs --anchored-packed: {why}")
    if options.packed_lookup and options.cross_attention == "softmax":
        raise InputError(
            "--packed-lookup and --cross-attention softmax cannot be combined. Use --packed-lookup 0"
        )
    return options


def choose_encoder_attentions(cfg: Any, options: EncoderOptions) -> EncoderAttentions:
    """Return the factory for an encoder's attention modules: anchored if ``cfg`` says so, else Luna's."""
    extension = extension_options(cfg)
    if extension.anchored_packed:
        return AnchoredEncoderAttentions(options, extension)
    return EncoderAttentions(options)


@dataclass(frozen=True)
class AnchoredEncoderAttentions(EncoderAttentions):
    """Factory for the attention modules of an encoder with anchored attention."""

    needs_geometry = True
    extension: ExtensionOptions

    @property
    def needs(self) -> Needs:
        """Features of the attention modules that need token distances or positions."""
        window = self.extension.local_parts
        return Needs(self.options.num_pack_heads or self.options.num_heads, unpack=not window, window=window)

    def build_attention(self, builders: Builders = TORCH) -> nn.Module:
        return AnchoredSelfAttention(
            **attention_arguments(self.options, builders),
            anchor_strength=self.extension.anchor_strength,
            window=self.extension.local_parts,
        )

    def find_source_geometry(self, context: Tensor, packed: Tensor, source: Source) -> Optional[Geometry]:
        """Compute the token distances and positions that the self-attention modules of all layers share.

        The arguments are the first layer's input X [S, B, C], P [L, B, C], and the padding masks of both.
        """
        return Geometry(context_geometry(self.needs, context, packed, source))


def choose_decoder_attentions(cfg: Any, options: DecoderOptions) -> DecoderAttentions:
    """Return the factory for a decoder's attention modules: Luna's, unless ``cfg`` enables an extension."""
    extension, defaults = extension_options(cfg), ExtensionOptions()
    if extension._replace(anchor_strength=defaults.anchor_strength) == defaults:
        return DecoderAttentions(options)
    return AnchoredDecoderAttentions(options, extension, target_separator(cfg))


def target_separator(cfg: Any) -> Optional[int]:
    """Return the id that separates target sentences in a document. None if examples are single sentences.

    ``cfg.separators`` is the pair of separator ids in source and target, or None.
    """
    separators = getattr(cfg, "separators", None)
    return separators[1] if separators else None


@dataclass(frozen=True)
class AnchoredDecoderAttentions(DecoderAttentions):
    """Factory for the attention modules of a decoder, with the extensions that the options enable.

    ``separator`` is the id of the target token that separates the sentences of a document, in which the
    diagonal prior (a bias toward an expected source position) restarts. None if a target is one sentence.
    """

    needs_geometry = True
    extension: ExtensionOptions
    separator: Optional[int] = None

    @property
    def needs(self) -> Needs:
        """Features of the attention modules that need distances or positions of source tokens."""
        options, extension = self.options, self.extension
        # The last layer has no pack attention if it reads the source by softmax attention.
        is_only_layer = options.num_layers == 1 or options.non_contextual_packed
        packs = extension.anchored_packed and not (extension.cross_attention == "softmax" and is_only_layer)
        return Needs(
            pack_heads=(options.num_pack_heads or options.num_heads) if packs else 0,
            lookup=extension.packed_lookup,
            diagonal=extension.diagonal_prior,
        )

    def build_causal_attention(self, builders: Builders = TORCH) -> nn.Module:
        if not self.extension.causal_decay:
            return super().build_causal_attention(builders)
        return DecayingCausalAttention(**causal_arguments(self.options, builders))

    def build_cross_attention(self, update_packed: bool, builders: Builders = TORCH) -> nn.Module:
        """Build the cross-attention that the options select: softmax, anchored or Luna attention.

        Anchored attention is Luna attention with a bias toward nearby tokens. If ``update_packed`` is False,
        softmax attention is built without pack attention, which updates the packed sequence P.
        """
        extension = self.extension
        arguments = {
            **attention_arguments(self.options, builders),
            "anchor_strength": extension.anchor_strength if extension.anchored_packed else None,
            "diagonal": extension.diagonal_prior,
        }
        if extension.cross_attention == "softmax":
            return SoftmaxCrossAttention(**arguments, packs=update_packed)
        if extension.anchored_packed:
            return AnchoredCrossAttention(**arguments, lookup=extension.packed_lookup)
        return super().build_cross_attention(update_packed, builders)

    def find_source_geometry(self, context: Tensor, packed: Tensor, source: Source) -> Optional[Geometry]:
        """Compute the source distances and positions that all layers share, or None if no layer needs them.

        The arguments are the encoder output [S, B, C], P [L, B, C], and the padding masks of both.
        """
        if self.needs == Needs():
            return None
        needs = self.needs._replace(for_export=self.options.fixed_shapes)
        return Geometry(context_geometry(needs, context, packed, source))

    def find_target_geometry(
        self,
        target: Target,
        memory: DecoderMemory,
        dtype: torch.dtype,
        before: Optional[UnfinishedSentence] = None,
    ) -> Tuple[Optional[Geometry], Optional[UnfinishedSentence]]:
        """Compute the target token positions for the diagonal prior, shared by all layers.

        The diagonal prior is a bias toward source tokens near an expected position. ``target`` holds the
        tokens of this call, and ``memory`` the cached tensors of the source. ``before`` describes the last,
        unfinished sentence of each hypothesis after the previous call. Fractional positions have the type
        ``dtype``, or float32 if that is more precise. Return the positions (None without a diagonal
        prior), and the unfinished sentences after this call (None if a target is one sentence).
        """
        layer = next((x for x in memory.layers if x is not None and x.cross is not None), None)
        if not self.needs.diagonal or layer is None:
            return None, None
        B, place, origin, unfinished = layer.cross.key.size(0), target.places, None, None
        if self.separator is not None:
            numbers = memory.source.sentence_numbers
            if target.tokens is None or numbers is None:
                raise InputError(
                    "--sentence-diagonal needs tokens to find the separators, got embeddings. Pass tokens"
                )
            begins = target.tokens.eq(self.separator) & ~target.padding_mask
            place, sentence, unfinished = number_within_sentences(place, begins, before)
            origin = count_tokens_before_sentence(sentence, numbers).reshape(B, -1)
        dtype = torch.promote_types(dtype, torch.float32)
        places = measure_places(TargetPlaces(place.reshape(B, -1), origin), dtype)
        return Geometry(target=places), unfinished
