"""Factory that builds the attention modules of a decoder with anchored attention and its extensions."""

from typing import Any, Optional, Tuple

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

    def find_geometry(
        self,
        context: Optional[Tensor],
        packed: Optional[Tensor],
        source: Source,
        target: Target,
        before: Optional[UnfinishedSentence] = None,
    ) -> Tuple[Optional[Geometry], Optional[UnfinishedSentence]]:
        """Compute the source and target positions that the cross-attention of all layers needs.

        Shapes: S source tokens, L rows of the packed sequence P, batch size B, width C.

        Args:
            context: encoder output [S, B, C], or None if there is no encoder.
            packed: packed sequence P [L, B, C]. None in later decoding steps, which use the cached keys and
                values.
            source: padding masks of the encoder output and of P. In a document, also the sentence number of
                each source token.
            target: target tokens of this call, with their positions and padding mask.
            before: unfinished sentence returned by the previous call (default: None, this call starts at the
                beginning of the target).

        Returns:
            Tuple of two values:

            - a :class:`Geometry` with the positions of the source tokens (None if ``packed`` is None) and of
              the target tokens. None if no attention module needs positions.
            - unfinished sentence to pass to the next call, or None if there are no separators.

        Raises:
            InputError: Separators are needed, but the caller passed embeddings instead of tokens.
        """
        if self.needs == Needs() or context is None:
            return None, None
        places, unfinished = None, None
        if self.needs.diagonal:
            B = context.size(1)
            places = TargetPlaces(target.places.reshape(B, -1))
            if self.separator is not None:
                if target.tokens is None or source.sentence_numbers is None:
                    raise InputError(
                        "--sentence-diagonal needs tokens to find the separators, got embeddings. Pass tokens"
                    )
                begins = target.tokens.eq(self.separator) & ~target.padding_mask
                place, sentence, unfinished = number_within_sentences(target.places, begins, before)
                origin = count_tokens_before_sentence(sentence, source.sentence_numbers)
                places = TargetPlaces(place.reshape(B, -1), origin.reshape(B, -1))
            if packed is None:  # a decoding step, in which the memory may be prepared
                places = measure_places(places, context.dtype)
        context_places = None
        if packed is not None:
            needs = self.needs._replace(for_export=self.for_export)
            context_places = context_geometry(needs, context, packed, source)
        return Geometry(context_places, places), unfinished
