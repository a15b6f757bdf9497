"""Choose the attentions of a decoder with the extension, and compute the geometry that they read."""

from typing import Any, Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.anchored.attention import AnchoredCrossAttention
from luna_fairseq.anchored.causal import DecayingCausalAttention
from luna_fairseq.anchored.encoder_attentions import ExtensionOptions, extension_options
from luna_fairseq.anchored.geometry import Needs, TargetPlaces, context_geometry
from luna_fairseq.anchored.sentence_places import Begun, origins, within_sentences
from luna_fairseq.anchored.softmax_cross import SoftmaxCrossAttention
from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import Geometry, Source, Target
from luna_fairseq.modules.decoder_attentions import DecoderAttentions, causal_arguments
from luna_fairseq.modules.encoder_attentions import attention_arguments
from luna_fairseq.modules.options import DecoderOptions


def choose_decoder_attentions(cfg: Any) -> DecoderAttentions:
    """Return the attentions of a decoder that a model's options ask for.

    Without options of the extension, these are the attentions of the paper.

    Args:
        cfg: any object with some of the attributes of :class:`ExtensionOptions`

    Raises:
        InputError: options of the extension contradict each other, see :func:`extension_options`
    """
    options, defaults = extension_options(cfg), ExtensionOptions()
    if options._replace(anchor_strength=defaults.anchor_strength) == defaults:
        return DecoderAttentions()
    return AnchoredDecoderAttentions(options)


class AnchoredDecoderAttentions(DecoderAttentions):
    """Attentions of a decoder with the extension: anchored rows of P, look-up, diagonal prior and decay.

    Args:
        options: options of the extension

    Attributes:
        separator: index of the target token that separates sentences; the diagonal restarts at each separator
            (default: None, a target is one sentence)
    """

    def __init__(self, options: ExtensionOptions):
        self.options = options
        self.separator: Optional[int] = None
        self.needs = Needs()

    def build_causal_attention(self, options: DecoderOptions) -> nn.Module:
        """Build causal self-attention of a layer."""
        if not self.options.causal_decay:
            return super().build_causal_attention(options)
        return DecayingCausalAttention(**causal_arguments(options))

    def build_cross_attention(self, options: DecoderOptions, update_packed: bool) -> nn.Module:
        """Build attention of a layer to the source.

        Args:
            options: options of the decoder
            update_packed: True if another layer reads the packed context
        """
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
        # The last layer may read less than the others: it need not pack.
        self.needs = Needs(*map(max, zip(self.needs, attention.needs())))
        return attention

    def find_geometry(
        self,
        context: Optional[Tensor],
        packed: Optional[Tensor],
        source: Source,
        target: Target,
        before: Optional[Begun] = None,
    ) -> Tuple[Optional[Geometry], Optional[Begun]]:
        """Compute the places of the rows of P in the source, and of the queries in the target.

        See :meth:`DecoderAttentions.find_geometry` for the arguments.

        Raises:
            InputError: the caller gave embeddings in place of tokens, in which separators cannot be found
        """
        if self.needs == Needs() or context is None:
            return None, None
        places, begun = None, None
        if self.needs.diagonal:
            places = TargetPlaces(target.places)
            if self.separator is not None:
                if target.tokens is None or source.sentence_numbers is None:
                    raise InputError(
                        "--sentence-diagonal needs tokens to find the separators, got embeddings: pass tokens"
                    )
                begins = target.tokens.eq(self.separator) & ~target.padding_mask
                place, sentence, begun = within_sentences(target.places, begins, before)
                places = TargetPlaces(place, origins(sentence, source.sentence_numbers))
        context_places = None
        if packed is not None:
            needs = self.needs._replace(for_export=self.for_export)
            context_places = context_geometry(needs, context, packed, source)
        return Geometry(context_places, places), begun
