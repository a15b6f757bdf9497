"""Luna decoder with the interface of fairseq's Transformer decoder.

:class:`FairseqLunaDecoder` connects :class:`luna_fairseq.modules.LunaDecoder` to fairseq's options,
dictionaries, encoder outputs, incremental state and beam search.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq.data import Dictionary
from fairseq.models import FairseqIncrementalDecoder
from fairseq.models.transformer import TransformerDecoderBase
from luna_fairseq.anchored.decoder_attentions import choose_decoder_attentions
from luna_fairseq.anchored.sentence_places import sentence_numbers
from luna_fairseq.errors import InputError
from luna_fairseq.models.beams import Hypotheses
from luna_fairseq.models.fairseq_layers import (
    FairseqPositions,
    IncrementalState,
    apply_layer_drop,
    fairseq_builders,
    read_options,
    use_fairseq_stack,
    wrap_luna_layer,
)
from luna_fairseq.models.no_torchscript import NoTorchScript, refuse_tracing
from luna_fairseq.modules.batch import Source
from luna_fairseq.modules.decoder_attentions import DecoderAttentions
from luna_fairseq.modules.luna_decoder import DecoderOutput, LunaDecoder
from luna_fairseq.modules.luna_encoder import EncoderOutput
from luna_fairseq.modules.options import DecoderOptions
from luna_fairseq.modules.state import DecoderState


class FairseqLunaDecoder(NoTorchScript, LunaDecoder, TransformerDecoderBase):
    """Luna decoder with the interface of fairseq's Transformer decoder.

    In beam search, fairseq repeats the source for every hypothesis. This class keeps a single copy of each
    source. The incremental state of fairseq holds a :class:`DecoderState` and the :class:`Hypotheses`, which
    assign each hypothesis to its source.

    Args:
        cfg: fairseq's TransformerConfig, extended with Luna's options.
        dictionary: target dictionary.
        embed_tokens: token embedding.
        no_encoder_attn: build a decoder without cross-attention (default: False).

    Attributes:
        begin_from: function that takes the number of hypotheses and returns the initial decoding state
            (default: None, decoding starts without earlier text).
        separators: indices of the sentence separator in the source and target dictionaries, used by
            --sentence-diagonal (default: None).
        attn_in_training: return attention weights over the source in training, for criterions that use them
            (default: False).
        need_attn: return attention weights over the source in evaluation (default: True).
    """

    begin_from: Optional[Callable[[int], DecoderState]] = None
    # torch.jit.trace would compile the property before forward can raise its error.
    __jit_unused_properties__ = ["separators"]

    def __init__(
        self, cfg: Any, dictionary: Dictionary, embed_tokens: nn.Embedding, no_encoder_attn: bool = False
    ):
        FairseqIncrementalDecoder.__init__(self, dictionary)
        self.cfg = cfg
        self.register_buffer("version", torch.Tensor([3]))  # expected in checkpoints by fairseq
        self.max_target_positions = cfg.max_target_positions
        self.share_input_output_embed = cfg.share_decoder_input_output_embed
        self.output_embed_dim = cfg.decoder.output_dim
        self.attn_in_training, self.need_attn = False, True
        self._separators: Optional[Tuple[int, int]] = None
        options = read_options(
            DecoderOptions,
            cfg,
            has_encoder=not no_encoder_attn,
            output_dim=None if cfg.tie_adaptive_weights else cfg.decoder.output_dim,
            linear_embedding=cfg.quant_noise.pq > 0 and not cfg.adaptive_input,
            backend=cfg.luna_backend,
        )
        builders = fairseq_builders(cfg, cfg.decoder.layerdrop)
        self.build(options, embed_tokens, self.choose_attentions(cfg), builders)
        self.num_layers = len(self.layers)
        use_fairseq_stack(self, "LunaDecoder", cfg)
        self.adaptive_softmax = self.output_projection = None
        self.build_output_projection(cfg, dictionary, embed_tokens)

    def choose_attentions(self, cfg: Any) -> DecoderAttentions:
        """Choose the decoder's types of self-attention and cross-attention.

        Args:
            cfg: fairseq's TransformerConfig, extended with Luna's options.

        Returns:
            Factory that builds the attention modules of each layer.
        """
        return choose_decoder_attentions(cfg)

    def build_layers(self, options: DecoderOptions) -> nn.ModuleList:
        """Build the decoder layers, with LayerDrop if --decoder-layerdrop is greater than 0.

        Overrides ``LunaDecoder.build_layers``.

        Args:
            options: decoder options.

        Returns:
            List of layers.
        """
        return apply_layer_drop(super().build_layers(options), self.cfg.decoder.layerdrop)

    def build_layer(self, options: DecoderOptions, number: int) -> nn.Module:
        """Build a decoder layer with fairseq's dropout and layer norm.

        The layer is also compiled, checkpointed or sharded if the options request it. Overrides
        ``LunaDecoder.build_layer``.

        Args:
            options: decoder options.
            number: zero-based layer index.

        Returns:
            The layer.
        """
        return wrap_luna_layer(super().build_layer(options, number), "LunaDecoderLayer", self.cfg)

    @property
    def separators(self) -> Optional[Tuple[int, int]]:
        """Indices of the sentence separator in the source and target dictionaries.

        None if --sentence-diagonal is not set.
        """
        return self._separators

    @separators.setter
    def separators(self, value: Optional[Tuple[int, int]]) -> None:
        self._separators = value
        attentions: Any = self.attentions  # an AnchoredDecoderAttentions, the only class with sentences
        attentions.separator = None if value is None else value[1]

    def make_generation_fast_(self, need_attn: bool = False, **kwargs: Any) -> None:
        """Choose whether the decoder returns attention weights during generation.

        fairseq calls this on every module before generation.

        Args:
            need_attn: return attention weights over the source, needed for alignments (default: False).
            kwargs: ignored.
        """
        self.need_attn = need_attn

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[Dict[str, List[Any]]] = None,
        incremental_state: Optional[IncrementalState] = None,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
    ) -> Tuple[Tensor, Dict[str, List[Any]]]:
        """Compute features for the target tokens, without the output projection.

        Shapes: batch size B, T target tokens, S source tokens, model width C.

        Args:
            prev_output_tokens: target tokens [B, T], shifted right by one.
            encoder_out: output of :class:`FairseqLunaEncoder` (default: None, no encoder).
            incremental_state: fairseq's incremental decoding state. If it is given, only the last token is
                processed (default: None, all tokens are processed).
            full_context_alignment: must be False, because causal attention cannot attend to later tokens.
            alignment_layer: index of the layer whose attention weights over the source are returned (default:
                None, the last layer).
            alignment_heads: number of leading attention heads to average (default: None, all heads).

        Returns:
            The features [B, T, C], and a dictionary. ``attn`` is a list with a single entry: the attention
            weights [B, T, S] over the source, or None. ``inner_states`` lists the hidden states [T, B, C]
            after every layer.

        Raises:
            InputError: The sequence exceeds the number of learned positions, or the call is inside
                torch.jit.trace or torch.export.
            NotImplementedError: ``full_context_alignment`` is True.
        """
        refuse_tracing()
        if full_context_alignment:
            raise NotImplementedError("Luna's causal attention cannot attend to the full target context")
        self.check_length(prev_output_tokens.size(1))
        entry, state, encoded = None, None, convert_source(encoder_out, incremental_state is not None)
        if incremental_state is not None:
            entry = self.get_incremental_state(incremental_state, "decoding") or self.create_state(
                prev_output_tokens, encoded
            )
            prev_output_tokens, state = prev_output_tokens[:, -1:], entry["state"]
        needs_weights = self.attn_in_training if self.training else self.need_attn
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1 if needs_weights else -1
        output, state = self.run_decoder(
            prev_output_tokens, encoded, encoder_out, state, entry is not None, (alignment_layer,)
        )
        if entry is not None:
            self.set_incremental_state(incremental_state, "decoding", {**entry, "state": state})
        attn = next((weights for weights in output.weights if weights is not None), None)
        if attn is not None:
            attn = attn[:alignment_heads].mean(dim=0)  # [B, T, S]
        return output.x, {"attn": [attn], "inner_states": list(output.states)}

    def forward(  # type: ignore[override]
        self, *args: Any, **kwargs: Any
    ) -> Tuple[Any, Dict[str, List[Any]]]:
        """Compute the logits of the target tokens.

        Takes the same arguments as fairseq's ``TransformerDecoderBase.forward``. See :meth:`extract_features`
        for most of these arguments.

        Args:
            args: positional arguments of fairseq's method.
            kwargs: keyword arguments of fairseq's method.

        Returns:
            Logits [batch size, length, vocabulary size], and the dictionary returned by
            :meth:`extract_features`.
        """
        return TransformerDecoderBase.forward(self, *args, **kwargs)

    def run_decoder(
        self,
        tokens: Tensor,
        encoded: Optional[EncoderOutput] = None,
        encoder_out: Optional[Dict[str, List[Any]]] = None,
        state: Optional[DecoderState] = None,
        keep_state: bool = True,
        weights_of: Tuple[int, ...] = (),
    ) -> Tuple[DecoderOutput, Optional[DecoderState]]:
        """Run :meth:`LunaDecoder.forward` on the next target tokens.

        If --sentence-diagonal is set, the sentence index of each source token is passed as well.

        Args:
            tokens: next target tokens [batch size, length], shifted right by one.
            encoded: encoder output, converted by :func:`convert_source` (default: None, no encoder).
            encoder_out: unconverted output of :class:`FairseqLunaEncoder`, which holds the source tokens for
                --sentence-diagonal (default: None).
            state: decoding state after all earlier tokens (default: None, no earlier tokens).
            keep_state: also return the state after ``tokens`` (default: True).
            weights_of: indices of the layers that return attention weights over the source (default: none).

        Returns:
            The decoder output, and the state after ``tokens`` (None if ``keep_state`` is False).
        """
        if encoded is not None and encoder_out is not None and self._separators is not None:
            (source,) = encoder_out["src_tokens"]
            numbers = sentence_numbers(source.eq(self._separators[0]), source.eq(self.padding_idx))
            numbers = numbers[:: numbers.size(0) // encoded.x.size(1)]
            encoded = encoded._replace(source=encoded.source._replace(sentence_numbers=numbers))
        return LunaDecoder.forward(self, tokens, encoded, state, keep_state=keep_state, weights_of=weights_of)

    def read_segment(
        self, tokens: Tensor, state: Optional[DecoderState]
    ) -> Tuple[Tuple[Tensor, Dict[str, List[Any]]], Optional[DecoderState]]:
        """Compute the logits of the next segment of a long text, and the state after this segment.

        Args:
            tokens: tokens [batch size, length] of the segment, shifted right by one.
            state: state after all earlier segments; None at the beginning of a text.

        Returns:
            The output of :meth:`forward` (logits and a dictionary), and the state after the segment.
        """
        output, state = self.run_decoder(tokens, state=self.to_device(state))
        return (self.output_layer(output.x), {"attn": [None], "inner_states": list(output.states)}), state

    def to_device(self, state: Optional[DecoderState]) -> Optional[DecoderState]:
        """Move a decoding state to the model's device.

        Args:
            state: decoding state that may be on a different device, for example if it was loaded from a
                checkpoint; or None.

        Returns:
            The moved state, or None.
        """
        return None if state is None else state.to(next(self.parameters()).device)

    def check_length(self, length: int) -> None:
        """Check that the model has enough positions for a sequence.

        Sinusoidal positions have no limit; their table is extended as needed.

        Args:
            length: number of tokens in the sequence.

        Raises:
            InputError: The model uses learned positions and has fewer than ``length`` of them.
        """
        if isinstance(self.embed_positions, FairseqPositions):
            self.embed_positions.extend(length)
        elif self.embed_positions is not None and length > self.max_positions():
            raise InputError(
                f"a sequence has {length} tokens, the model's positions end at {self.max_positions()}: "
                "shorten it, or train with a larger --max-target-positions"
            )

    def create_state(self, tokens: Tensor, encoded: Optional[EncoderOutput]) -> Dict[str, Any]:
        """Create the decoder's entry in fairseq's incremental state, before the first step.

        Args:
            tokens: first target tokens [number of hypotheses, length].
            encoded: encoder output; None if the model has no encoder.

        Returns:
            Dictionary with two entries. ``state`` is the initial :class:`DecoderState` or None.
            ``hypotheses`` assigns each hypothesis to its source sentence.
        """
        # If there is no source, all hypotheses share one P.
        sentences = 1 if encoded is None else encoded.x.size(1)
        hypotheses = Hypotheses.adjacent(tokens.size(0), sentences, tokens.device)
        state = None if self.begin_from is None else self.to_device(self.begin_from(tokens.size(0)))
        return {"state": state, "hypotheses": hypotheses}

    def reorder_incremental_state_scripting(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder the decoding state after beam search has selected hypotheses.

        Overrides the method of fairseq's ``FairseqIncrementalDecoder``. Source-dependent state is reordered
        only if sentences have finished or moved.

        Args:
            incremental_state: fairseq's incremental decoding state, modified in place.
            new_order: for each new hypothesis, the index of the old hypothesis it continues, [number of new
                hypotheses].
        """
        entry = self.get_incremental_state(incremental_state, "decoding")
        if entry is None:
            return
        state, hypotheses = entry["state"].reorder(new_order), entry["hypotheses"]
        after = hypotheses.reorder(new_order)
        if after is not None:
            sentences, hypotheses = after
            state = state.select_sources(sentences)
        self.set_incremental_state(incremental_state, "decoding", {"state": state, "hypotheses": hypotheses})


def convert_source(encoder_out: Optional[Dict[str, List[Any]]], decodes: bool) -> Optional[EncoderOutput]:
    """Convert the output of :class:`FairseqLunaEncoder` to the format expected by :class:`LunaDecoder`.

    Args:
        encoder_out: encoder output; None if the model has no encoder.
        decodes: whether decoding is incremental. In this case, all hypotheses of a source share a single copy
            of the source.

    Returns:
        The converted output; None if the model has no encoder.
    """
    if encoder_out is None:
        return None
    hypotheses = encoder_out["hypotheses"]
    n = hypotheses[0].each if hypotheses and decodes else 1
    padding_mask = encoder_out["encoder_padding_mask"][0] if all(encoder_out["has_padding"]) else None
    packed_padding_mask = next(iter(encoder_out["packed_padding_mask"]), None)
    x, packed = encoder_out["encoder_out"][0][:, ::n], encoder_out["packed_out"][0][:, ::n]
    return EncoderOutput(x, packed, Source(padding_mask, packed_padding_mask).stride(n))
