"""Luna decoder with the interface of fairseq's Transformer decoder.

:class:`FairseqLunaDecoder` connects :class:`luna_fairseq.modules.LunaDecoder` to fairseq's options,
dictionaries, encoder outputs, incremental state and beam search.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq.data import Dictionary
from fairseq.models import FairseqIncrementalDecoder
from fairseq.modules import AdaptiveSoftmax
from fairseq.utils import eval_str_list
from luna_fairseq.anchored.factories import choose_decoder_attentions
from luna_fairseq.errors import InputError
from luna_fairseq.models.beams import group_by_sentence
from luna_fairseq.models.fairseq_layers import (
    FairseqPositions,
    IncrementalState,
    NoTorchScript,
    fairseq_builders,
    read_options,
    refuse_tracing,
)
from luna_fairseq.modules.batch import Source
from luna_fairseq.modules.heads import hypotheses_per_sentence
from luna_fairseq.modules.luna_decoder import DecoderAttentions, LunaDecoder
from luna_fairseq.modules.luna_encoder import EncoderOutput
from luna_fairseq.modules.memory import DecoderMemory, DecoderState
from luna_fairseq.modules.options import DecoderOptions


class Decoding(NamedTuple):
    """Decoding state of a Luna decoder, kept in fairseq's incremental state.

    Attributes:
        memory: cached tensors of the source sentences.
        state: decoder state after the tokens generated so far. None before the first step.
        sentences: index [R] in ``memory`` of the source sentence of each of R hypotheses. The hypotheses of a
            sentence are adjacent, and all sentences have equally many. None for a language model.
    """

    memory: DecoderMemory
    state: Optional[DecoderState]
    sentences: Optional[Tensor]


class FairseqLunaDecoder(NoTorchScript, LunaDecoder, FairseqIncrementalDecoder):
    """Luna decoder with the interface of fairseq's incremental decoders.

    In beam search, fairseq repeats the source for every hypothesis. This class instead processes each source
    once, before the first step. The keys and values cached for the source, and the decoder state, are kept as
    a :class:`Decoding` in fairseq's incremental state.

    Shapes in the methods: batch size B, T target and S source tokens, width C, V dictionary entries.

    Args:
        cfg: fairseq's TransformerConfig, extended with Luna's options.
        dictionary: target dictionary.
        embed_tokens: token embedding.
        no_encoder_attn: build a decoder without cross-attention.
        choose_attentions: function ``(cfg, decoder options) -> factory`` of attention modules.
    """

    def __init__(
        self,
        cfg: Any,
        dictionary: Dictionary,
        embed_tokens: nn.Embedding,
        no_encoder_attn: bool = False,
        choose_attentions: Callable[..., DecoderAttentions] = choose_decoder_attentions,
    ):
        options = read_options(
            DecoderOptions,
            cfg,
            has_encoder=not no_encoder_attn,
            output_dim=None if cfg.tie_adaptive_weights else cfg.decoder.output_dim,
            linear_embedding=cfg.quant_noise.pq > 0 and not cfg.adaptive_input,
            backend=cfg.luna_backend,
        )
        # `read` and `forward` must skip the same layers, so `read_source` chooses them, and fairseq's list of
        # layers (which chooses anew in each loop) is not used.
        builders = fairseq_builders(cfg, layer_drop=0.0)
        attentions = choose_attentions(cfg, options)
        super().__init__(options, embed_tokens, attentions, builders, dictionary=dictionary)
        self.cfg = cfg
        self.register_buffer("version", torch.Tensor([3]))  # expected in checkpoints by fairseq
        self.max_target_positions = cfg.max_target_positions
        self.attn_in_training = getattr(cfg, "attn_in_training", False)
        self.need_attn = True
        self.num_layers = len(self.layers)
        self.adaptive_softmax: Optional[nn.Module] = None
        self.output_projection: Optional[nn.Module] = None
        if cfg.adaptive_softmax_cutoff is not None:
            self.adaptive_softmax = build_adaptive_softmax(cfg, len(dictionary), embed_tokens)
        else:
            self.output_projection = build_vocabulary_projection(cfg, len(dictionary), embed_tokens)

    def max_positions(self) -> int:
        if self.embed_positions is None:
            return self.max_target_positions
        return min(self.max_target_positions, self.embed_positions.max_positions)

    def output_layer(self, features: Tensor, **kwargs: Any) -> Tensor:
        """Compute logits [B, T, V] from features [B, T, C]. For an adaptive softmax, return the features."""
        return features if self.output_projection is None else self.output_projection(features)

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> Dict[str, Tensor]:
        """Add fairseq's entry ``version`` and a tied output projection to a state dict that lacks them."""
        state_dict.setdefault(f"{name}.version", self.version.clone())
        shared = state_dict.get(f"{name}.embed_tokens.weight")
        if self.cfg.share_decoder_input_output_embed and self.output_projection is not None:
            if shared is not None:
                state_dict.setdefault(f"{name}.output_projection.weight", shared)
        return state_dict

    def make_generation_fast_(self, need_attn: bool = False, **kwargs: Any) -> None:
        """Set whether the decoder returns attention weights over the source during generation."""
        self.need_attn = need_attn

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[Dict[str, List[Any]]] = None,
        incremental_state: Optional[IncrementalState] = None,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Compute the features [B, T, C] before the output projection.

        Args:
            prev_output_tokens: target tokens [B, T], shifted right by one.
            encoder_out: output of :class:`FairseqLunaEncoder`. None without an encoder.
            incremental_state: fairseq's decoding state. If it is given, only the last token is processed.
            full_context_alignment: must be False, because causal attention cannot attend to later tokens.
            alignment_layer: layer whose attention weights over the source are returned (default: the last
                layer if attention weights are needed, otherwise none).
            alignment_heads: number of leading attention heads to average (default: all heads).

        Returns:
            The features and a dictionary. ``attn`` is a list with a single entry, the attention weights
            [B, T, S], or None without weights. ``inner_states`` lists the hidden states [T, B, C] before the
            first layer and after each layer that runs.
        """
        if full_context_alignment:
            raise NotImplementedError("Luna's causal attention cannot attend to the full target context")
        self.check_length(prev_output_tokens)
        needs_weights = self.attn_in_training if self.training else self.need_attn
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1 if needs_weights else -1
        weights_of = (alignment_layer,)
        # super().forward is the core's. The forward of this class has fairseq's arguments.
        if incremental_state is None:
            memory, _ = self.read_source(encoder_out, False, weights_of)
            output, _ = super().forward(prev_output_tokens, memory, weights_of=weights_of)
        else:
            decoding = self.get_incremental_state(incremental_state, "decoding")
            if decoding is None:
                start = self.get_incremental_state(incremental_state, "start")
                decoding = self.begin_decoding(encoder_out, len(prev_output_tokens), weights_of, start)
            memory, state, tokens = decoding.memory, decoding.state, prev_output_tokens[:, -1:]
            output, state = super().forward(tokens, memory, state, keep_state=True, weights_of=weights_of)
            self.set_incremental_state(incremental_state, "decoding", decoding._replace(state=state))
        attn = output.weights[alignment_layer] if 0 <= alignment_layer < self.num_layers else None
        if attn is not None:
            attn = attn[:alignment_heads].mean(dim=0)  # [B, T, S]
        # fairseq's scorer would add the None in a list [None] to the weights of another model.
        return output.x, {"attn": None if attn is None else [attn], "inner_states": list(output.states)}

    def forward(  # type: ignore[override]
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[Dict[str, List[Any]]] = None,
        incremental_state: Optional[IncrementalState] = None,
        features_only: bool = False,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
        src_lengths: Optional[Any] = None,
        return_all_hiddens: bool = False,
    ) -> Tuple[Any, Dict[str, Any]]:
        """Compute logits [B, T, V] of the next tokens, or features [B, T, C] if ``features_only`` is True.

        :meth:`extract_features` describes the other arguments and the returned dictionary. ``src_lengths``
        and ``return_all_hiddens`` are ignored.
        """
        x, extra = self.extract_features(
            prev_output_tokens,
            encoder_out,
            incremental_state,
            full_context_alignment,
            alignment_layer,
            alignment_heads,
        )
        return x if features_only else self.output_layer(x), extra

    def read_source(
        self,
        encoder_out: Optional[Dict[str, List[Any]]],
        for_decoding: bool = False,
        weights_of: Tuple[int, ...] = (),
    ) -> Tuple[DecoderMemory, Optional[Tensor]]:
        """Compute the decoder's memory: tensors of the source that are cached for all target positions.

        ``encoder_out`` is None for a language model. ``for_decoding`` optimizes the memory for single tokens.
        ``weights_of`` lists the indices of layers whose attention weights are needed. In training,
        --decoder-layerdrop skips layers.

        Return the memory and, for each hypothesis, the index of its sentence in the memory. The indices are
        None if fairseq has not reordered the encoder's output.
        """
        refuse_tracing()
        skipped: List[int] = []
        if self.training and self.cfg.decoder.layerdrop > 0.0:
            is_skipped = torch.empty(len(self.layers)).uniform_() <= self.cfg.decoder.layerdrop
            skipped = [number for number, skips in enumerate(is_skipped.tolist()) if skips]
        if encoder_out is None:
            return self.read(skipped=skipped), None
        source: Source = encoder_out["source"][0]
        if source.padding_mask is not None:
            # As in fairseq, a caller may have changed the dictionary, for example to add an image.
            source = source._replace(padding_mask=encoder_out["encoder_padding_mask"][0])
        encoded = EncoderOutput(encoder_out["encoder_out"][0], encoder_out["packed_out"][0], source)
        memory = self.read(encoded, for_decoding, weights_of, skipped)
        if not encoder_out["sentences"]:
            return memory, None
        remaining, sentences = group_by_sentence(encoder_out["sentences"][0])
        if not torch.equal(remaining, torch.arange(encoded.x.size(1)).to(remaining)):
            memory = memory.select_sources(remaining)
        return memory, sentences

    def begin_decoding(
        self,
        encoder_out: Optional[Dict[str, List[Any]]],
        num_hypotheses: int,
        weights_of: Tuple[int, ...],
        state: Optional[DecoderState],
    ) -> Decoding:
        """Compute the keys and values cached for the source, and return the initial decoding state.

        ``encoder_out`` is None for a language model. ``num_hypotheses`` is the number of hypotheses in the
        batch, and ``weights_of`` lists the indices of layers whose attention weights are needed. ``state`` is
        the decoder state after earlier text. It is None for a new text.
        """
        memory, sentences = self.read_source(encoder_out, True, weights_of)
        if encoder_out is not None and sentences is None:
            x = encoder_out["encoder_out"][0]
            each = hypotheses_per_sentence(num_hypotheses, x.size(1))
            sentences = torch.arange(x.size(1), device=x.device).repeat_interleave(each)
        return Decoding(memory, self.to_device(state), sentences)

    def continue_from(self, incremental_state: IncrementalState, state: Optional[DecoderState]) -> None:
        """Set the initial decoder state: the state after earlier text, or None to start a new text."""
        self.set_incremental_state(incremental_state, "start", state)

    def read_segment(
        self, tokens: Tensor, state: Optional[DecoderState]
    ) -> Tuple[Tuple[Tensor, Dict[str, Any]], Optional[DecoderState]]:
        """Run the decoder on the next segment [B, T] of a text, given the state after the previous segment.

        ``state`` is None for the first segment. Return (logits [B, T, V], extra outputs) and the new state.
        Raises InputError in training with --decoder-layerdrop.
        """
        if self.training and self.cfg.decoder.layerdrop > 0.0:
            raise InputError(
                "--decoder-layerdrop does not work with a stream, which passes the state of every layer to "
                "the next segment. Remove the option, or call model.eval()"
            )
        memory, _ = self.read_source(None)
        output, state = super().forward(tokens, memory, self.to_device(state), keep_state=True)
        return (self.output_layer(output.x), {"attn": None, "inner_states": list(output.states)}), state

    def to_device(self, state: Optional[DecoderState]) -> Optional[DecoderState]:
        """Move a decoding state, which may come from a checkpoint, to the model's device."""
        return None if state is None else state.to(next(self.parameters()).device)

    def check_length(self, tokens: Tensor) -> None:
        """Extend sinusoidal positions to tokens [B, T]. Raise InputError if learned positions are too few."""
        if isinstance(self.embed_positions, FairseqPositions):
            self.embed_positions.extend(tokens.size(1))
        elif self.embed_positions is not None and tokens.size(1) > self.max_positions():
            length = int(tokens.ne(self.padding_idx).sum(dim=1).max())
            if length > self.max_positions():
                raise InputError(
                    f"a sequence has {length} tokens, the model's positions end at {self.max_positions()}: "
                    "shorten it, or train with a larger --max-target-positions"
                )

    def reorder_incremental_state_scripting(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder the decoding state for beam search: hypothesis i continues hypothesis ``new_order[i]``.

        The tensors computed from the source change only if the order or number of source sentences changes.
        """
        decoding = self.get_incremental_state(incremental_state, "decoding")
        if decoding is None:
            return
        memory, state, old_sentences = decoding
        decoding = decoding._replace(state=state.reorder(new_order))
        if old_sentences is not None:
            sentences = old_sentences.index_select(0, new_order)
            if not torch.equal(sentences, old_sentences):
                remaining, sentences = group_by_sentence(sentences)
                decoding = decoding._replace(memory=memory.select_sources(remaining), sentences=sentences)
        self.set_incremental_state(incremental_state, "decoding", decoding)


def build_adaptive_softmax(cfg: Any, vocabulary: int, embed_tokens: nn.Module) -> AdaptiveSoftmax:
    """Build an adaptive softmax. If tied, it shares the weights of the adaptive input ``embed_tokens``."""
    return AdaptiveSoftmax(
        vocabulary,
        cfg.decoder.output_dim,
        eval_str_list(cfg.adaptive_softmax_cutoff, type=int),
        dropout=cfg.adaptive_softmax_dropout,
        adaptive_inputs=embed_tokens if cfg.tie_adaptive_weights else None,
        factor=cfg.adaptive_softmax_factor,
        tie_proj=cfg.tie_adaptive_proj,
    )


def build_vocabulary_projection(cfg: Any, vocabulary: int, embed_tokens: nn.Embedding) -> nn.Linear:
    """Build the output projection to ``vocabulary`` logits. If tied, its weight is the embedding matrix."""
    if cfg.share_decoder_input_output_embed:
        projection = nn.Linear(*reversed(embed_tokens.weight.shape), bias=False)
        projection.weight = embed_tokens.weight
        return projection
    projection = nn.Linear(cfg.decoder.output_dim, vocabulary, bias=False)
    nn.init.normal_(projection.weight, mean=0, std=cfg.decoder.output_dim**-0.5)
    return projection
