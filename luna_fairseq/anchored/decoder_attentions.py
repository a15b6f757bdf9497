"""Factory that builds the attention modules of a decoder with anchored attention and its extensions."""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.anchored.attention import AnchoredCrossAttention
from luna_fairseq.anchored.causal import DecayingCausalAttention
from luna_fairseq.anchored.geometry import Needs, TargetPlaces, context_geometry, measure_places
from luna_fairseq.anchored.options import ExtensionOptions, extension_options
from luna_fairseq.anchored.sentence_places import (
    UnfinishedSentence,
    count_tokens_before_sentence,
    number_within_sentences,
)
from luna_fairseq.anchored.softmax_cross import SoftmaxCrossAttention
from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import Geometry, Source, Target
from luna_fairseq.modules.decoder_attentions import DecoderAttentions, causal_arguments
from luna_fairseq.modules.encoder_attentions import attention_arguments
from luna_fairseq.modules.memory import DecoderMemory
from luna_fairseq.modules.options import DecoderOptions


def choose_decoder_attentions(cfg: Any) -> DecoderAttentions:
    """Return the factory of a decoder's attention modules that the configuration ``cfg`` selects."""
    options, defaults = extension_options(cfg), ExtensionOptions()
    if options._replace(anchor_strength=defaults.anchor_strength) == defaults:
        return DecoderAttentions()
    return AnchoredDecoderAttentions(options)


class AnchoredDecoderAttentions(DecoderAttentions):
    """Factory that builds the attention modules of a decoder with the extensions that the options enable.

    Attributes:
        separator: id of the target token that separates the sentences of a document, at which the diagonal
            restarts. None if a target is one sentence.
    """

    def __init__(self, options: ExtensionOptions):
        self.options = options
        self.separator: Optional[int] = None
        self.needs = Needs()

    def build_causal_attention(self, options: DecoderOptions) -> nn.Module:
        """Build the causal self-attention of one layer, with an exponential decay if that is enabled."""
        if not self.options.causal_decay:
            return super().build_causal_attention(options)
        return DecayingCausalAttention(**causal_arguments(options))

    def build_cross_attention(self, options: DecoderOptions, update_packed: bool) -> nn.Module:
        """Build the cross-attention of one layer, with the extensions that are enabled."""
        ours = self.options
        anchors: Any = {
            "anchor_strength": ours.anchor_strength if ours.anchored_packed else None,
            "diagonal": ours.diagonal_prior,
        }
        arguments = attention_arguments(options)
        attention: Any
        if ours.cross_attention == "softmax":
            attention = SoftmaxCrossAttention(**arguments, **anchors, packs=update_packed)
        elif ours.anchored_packed:
            attention = AnchoredCrossAttention(**arguments, **anchors, lookup=ours.packed_lookup)
        else:
            return super().build_cross_attention(options, update_packed)
        # The last layer may need fewer distances than the others, because it has no pack attention.
        self.needs = Needs(*map(max, zip(self.needs, attention.needs())))
        return attention

    def find_source_geometry(self, context: Tensor, packed: Tensor, source: Source) -> Optional[Geometry]:
        """Compute the source positions that the pack attention of all layers needs, or None."""
        if self.needs == Needs():
            return None
        needs = self.needs._replace(for_export=self.for_export)
        return Geometry(context_geometry(needs, context, packed, source))

    def find_target_geometry(
        self,
        target: Target,
        memory: DecoderMemory,
        dtype: torch.dtype,
        before: Optional[UnfinishedSentence] = None,
    ) -> Tuple[Optional[Geometry], Optional[UnfinishedSentence]]:
        """Compute the target positions that the diagonal prior of all layers needs.

        With a separator, also return the unfinished sentence of each hypothesis, the state for the next call.
        Raises InputError if separators are needed, but the caller passed embeddings instead of tokens.
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
        places = measure_places(TargetPlaces(place.reshape(B, -1), origin), dtype)
        return Geometry(target=places), unfinished
