"""The Luna decoder for fairseq: it translates options, dictionary, the encoder's output, the store of
incremental decoding and the rows of beam search."""

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
    stack_options,
    use_fairseq_stack,
    with_layer_drop,
    wrap_luna_layer,
)
from luna_fairseq.models.no_torchscript import NoTorchScript, refuse_graphs
from luna_fairseq.modules.batch import Source
from luna_fairseq.modules.decoder_attentions import DecoderAttentions
from luna_fairseq.modules.luna_decoder import DecoderOutput, LunaDecoder
from luna_fairseq.modules.luna_encoder import EncoderOutput
from luna_fairseq.modules.options import SINUSOIDAL, DecoderOptions, StackOptions
from luna_fairseq.modules.state import DecoderState


class FairseqLunaDecoder(NoTorchScript, LunaDecoder, TransformerDecoderBase):
    """:class:`LunaDecoder` with the interface of fairseq's Transformer decoder.

    fairseq repeats a source for each hypothesis of a beam; this class passes every source on once. fairseq's
    store holds one entry: the :class:`DecoderState`, and the sentence that each hypothesis belongs to.

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it
        dictionary: target dictionary
        embed_tokens: token embedding
        no_encoder_attn: there is no encoder (default: False)

    Attributes:
        begin_from: function of a number of rows that returns the state with which decoding begins (default:
            None, a text begins)
        separators: with --sentence-diagonal, the tokens between sentences of the source and of the target
            (default: None)
        attn_in_training: return weights over the source in training, for a criterion that reads them
            (default: False)
        need_attn: return weights over the source in evaluation (default: True)
    """

    begin_from: Optional[Callable[[int], DecoderState]] = None
    __jit_unused_properties__ = ["separators"]  # torch.jit.trace would compile it before it is refused

    def __init__(
        self, cfg: Any, dictionary: Dictionary, embed_tokens: nn.Embedding, no_encoder_attn: bool = False
    ):
        FairseqIncrementalDecoder.__init__(self, dictionary)
        self.cfg = cfg
        self.register_buffer("version", torch.Tensor([3]))  # fairseq's checkpoints have one
        self.max_target_positions = cfg.max_target_positions
        self.share_input_output_embed = cfg.share_decoder_input_output_embed
        self.output_embed_dim = cfg.decoder.output_dim
        self.attn_in_training, self.need_attn = False, True
        self._separators: Optional[Tuple[int, int]] = None
        options = DecoderOptions(
            **stack_options(cfg, cfg.decoder, cfg.max_target_positions),
            has_encoder=not no_encoder_attn,
            output_dim=None if cfg.tie_adaptive_weights else cfg.decoder.output_dim,
            final_norm=not cfg.no_decoder_final_norm,
            pack_activation=cfg.pack_activation,
            backend=cfg.luna_backend,
        )
        self.build(options, embed_tokens, self.choose_attentions(cfg))
        self.num_layers = len(self.layers)
        use_fairseq_stack(self, "LunaDecoder", cfg)
        self.adaptive_softmax = self.output_projection = None
        self.build_output_projection(cfg, dictionary, embed_tokens)

    def choose_attentions(self, cfg: Any) -> DecoderAttentions:
        """Return the attentions that the options ask for."""
        return choose_decoder_attentions(cfg)

    def build_positions(self, options: StackOptions, padding_idx: int) -> Optional[nn.Module]:
        """Build fairseq's table of sinusoidal positions, or what the core builds."""
        if options.positions == SINUSOIDAL:
            return FairseqPositions(options.max_positions, options.embed_dim, padding_idx)
        return super().build_positions(options, padding_idx)

    def build_layers(self, options: DecoderOptions) -> nn.ModuleList:
        """Build the layers in their order, with fairseq's LayerDrop if it is asked for."""
        return with_layer_drop(super().build_layers(options), self.cfg.decoder.layerdrop)

    def build_layer(self, options: DecoderOptions, number: int) -> nn.Module:
        """Build layer ``number``, with fairseq's layers in it and its wrappers around it."""
        return wrap_luna_layer(super().build_layer(options, number), "LunaDecoderLayer", self.cfg)

    @property
    def separators(self) -> Optional[Tuple[int, int]]:
        """Tokens between sentences of the source and of the target; None if sentences are not counted."""
        return self._separators

    @separators.setter
    def separators(self, value: Optional[Tuple[int, int]]) -> None:
        self._separators = value
        attentions: Any = self.attentions  # those of the extension, which alone counts sentences
        attentions.separator = None if value is None else value[1]

    def make_generation_fast_(self, need_attn: bool = False, **kwargs: Any) -> None:
        """Remember whether fairseq-generate will print alignments."""
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
        """
        Args:
            prev_output_tokens: target shifted right [B, T]
            encoder_out: what :class:`FairseqLunaEncoder` has returned; None without an encoder
            incremental_state: fairseq's store for decoding; the last token alone is new then (default: None,
                the whole target is read)
            full_context_alignment: must be False; there is no such form
            alignment_layer: the layer whose weights over the source are returned (default: None, the last)
            alignment_heads: average over the first of its heads only (default: None, all heads)

        Returns:
            features [B, T, C], and ``attn`` [weights over source tokens B x T x S, or None], ``inner_states``

        Raises:
            InputError: more tokens than learned positions; torch.jit.trace or torch.export
            NotImplementedError: ``full_context_alignment``
        """
        refuse_graphs()
        if full_context_alignment:
            raise NotImplementedError("Luna's causal attention cannot attend to the full target context")
        self.check_length(prev_output_tokens.size(1))
        kept, state, encoded = None, None, source_of(encoder_out, incremental_state is not None)
        if incremental_state is not None:
            kept = self.get_incremental_state(incremental_state, "decoding") or self.begin(
                prev_output_tokens, encoded
            )
            prev_output_tokens, state = prev_output_tokens[:, -1:], kept["state"]
        wanted = self.attn_in_training if self.training else self.need_attn
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1 if wanted else -1
        output, state = self.read(
            prev_output_tokens, encoded, encoder_out, state, kept is not None, (alignment_layer,)
        )
        if kept is not None:
            self.set_incremental_state(incremental_state, "decoding", {**kept, "state": state})
        attn = next((weights for weights in output.weights if weights is not None), None)
        if attn is not None:
            attn = attn[:alignment_heads].mean(dim=0)  # [B, T, S]
        return output.x, {"attn": [attn], "inner_states": list(output.states)}

    def forward(  # type: ignore[override]
        self, *args: Any, **kwargs: Any
    ) -> Tuple[Any, Dict[str, List[Any]]]:
        """Call fairseq's Transformer decoder, which calls :meth:`extract_features`. Arguments as there."""
        return TransformerDecoderBase.forward(self, *args, **kwargs)

    def read(
        self,
        tokens: Tensor,
        encoded: Optional[EncoderOutput] = None,
        encoder_out: Optional[Dict[str, List[Any]]] = None,
        state: Optional[DecoderState] = None,
        keep_state: bool = True,
        weights_of: Tuple[int, ...] = (),
    ) -> Tuple[DecoderOutput, Optional[DecoderState]]:
        """Call :class:`LunaDecoder` for the next ``tokens`` [B, T]. Arguments as there."""
        if encoded is not None and encoder_out is not None and self._separators is not None:
            (source,) = encoder_out["src_tokens"]
            numbers = sentence_numbers(source.eq(self._separators[0]), source.eq(self.padding_idx))
            numbers = numbers[:: numbers.size(0) // encoded.x.size(1)]
            encoded = encoded._replace(source=encoded.source._replace(sentence_numbers=numbers))
        return LunaDecoder.forward(self, tokens, encoded, state, keep_state=keep_state, weights_of=weights_of)

    def read_segment(
        self, tokens: Tensor, state: Optional[DecoderState]
    ) -> Tuple[Tuple[Tensor, Dict[str, List[Any]]], Optional[DecoderState]]:
        """Read the next ``tokens`` [B, T] of a text, after those in ``state``. Returns what :meth:`forward`
        returns, and the state after the tokens."""
        output, state = self.read(tokens, state=self.moved(state))
        return (self.output_layer(output.x), {"attn": [None], "inner_states": list(output.states)}), state

    def moved(self, state: Optional[DecoderState]) -> Optional[DecoderState]:
        """Return ``state`` on the model's device; a checkpoint holds it on the CPU."""
        return None if state is None else state.to(next(self.parameters()).device)

    def check_length(self, length: int) -> None:
        """Raise InputError if ``length`` tokens are more than the learned positions, and extend the table of
        sinusoidal ones, which have no end."""
        if isinstance(self.embed_positions, FairseqPositions):
            self.embed_positions.extend(length)
        elif self.embed_positions is not None and length > self.max_positions():
            raise InputError(
                f"a sequence has {length} tokens, the model's positions end at {self.max_positions()}: "
                "shorten it, or train with a larger --max-target-positions"
            )

    def begin(self, tokens: Tensor, encoded: Optional[EncoderOutput]) -> Dict[str, Any]:
        """Return the entry of fairseq's store with which the rows ``tokens`` [B n, T] begin to decode."""
        # Without a source all rows share one P.
        sentences = 1 if encoded is None else encoded.x.size(1)
        hypotheses = Hypotheses.in_a_row(tokens.size(0), sentences, tokens.device)
        state = None if self.begin_from is None else self.moved(self.begin_from(tokens.size(0)))
        return {"state": state, "hypotheses": hypotheses}

    def reorder_incremental_state_scripting(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Give hypothesis i the state that hypothesis ``new_order[i]`` had [N']. What hypotheses share with
        the others of their sentence is touched only if sentences leave or change places."""
        kept = self.get_incremental_state(incremental_state, "decoding")
        if kept is None:
            return
        state, hypotheses = kept["state"].reorder(new_order), kept["hypotheses"]
        after = hypotheses.reorder(new_order)
        if after is not None:
            sentences, hypotheses = after
            state = state.select_sources(sentences)
        self.set_incremental_state(incremental_state, "decoding", {"state": state, "hypotheses": hypotheses})


def source_of(encoder_out: Optional[Dict[str, List[Any]]], decodes: bool) -> Optional[EncoderOutput]:
    """Translate the output of :class:`FairseqLunaEncoder`: one sentence for each of its rows, or, while a
    beam is decoded, one for all hypotheses of a sentence. None stays None."""
    if encoder_out is None:
        return None
    hypotheses = encoder_out["hypotheses"]
    n = hypotheses[0].each if hypotheses and decodes else 1
    padding_mask = encoder_out["encoder_padding_mask"][0] if all(encoder_out["has_padding"]) else None
    packed_padding_mask = next(iter(encoder_out["packed_padding_mask"]), None)
    x, packed = encoder_out["encoder_out"][0][:, ::n], encoder_out["packed_out"][0][:, ::n]
    return EncoderOutput(x, packed, Source(padding_mask, packed_padding_mask).stride(n))
