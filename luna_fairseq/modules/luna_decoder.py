"""The Luna decoder: fairseq's Transformer decoder, with the encoder's last packed sequence as its P.

Without an encoder it is a language model, and every layer has a P of its own.
"""

from typing import Any, Dict, List, Optional, Tuple, Type

import torch
from torch import Tensor

from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules import FairseqDropout
from fairseq.utils import make_positions
from luna_fairseq.errors import InputError
from luna_fairseq.modules.anchors import Anchors, find_anchors
from luna_fairseq.modules.beams import Hypotheses
from luna_fairseq.modules.fairseq_attention import (
    FairseqLunaAttention,
    FairseqLunaCausalAttention,
    IncrementalState,
)
from luna_fairseq.modules.luna_encoder import drop_words, wrap_layer
from luna_fairseq.modules.luna_layer import LunaDecoderLayer


class LunaDecoder(TransformerDecoderBase):
    """N Luna layers over target tokens.

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it
        dictionary: target dictionary
        embed_tokens: token embedding
        no_encoder_attn: there is no encoder (default: False)
    """

    layer_class: Type[LunaDecoderLayer] = LunaDecoderLayer

    def __init__(self, cfg: Any, dictionary: Dictionary, embed_tokens: torch.nn.Embedding, **kwargs: Any):
        self.layers_built = 0
        super().__init__(cfg, dictionary, embed_tokens, **kwargs)
        self.word_dropout_module = FairseqDropout(cfg.word_dropout, module_name=self.__class__.__name__)

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> torch.nn.Module:
        # fairseq builds the layers in order and does not say which one it is at.
        self.layers_built += 1
        is_last = self.layers_built == cfg.decoder.layers
        update_packed = not (is_last or cfg.non_contextual_packed)
        return wrap_layer(self.layer_class(cfg, update_packed, no_encoder_attn), cfg)

    def forward_embedding(
        self, prev_output_tokens: Tensor, incremental_state: Optional[IncrementalState] = None
    ) -> Tensor:
        """Embed ``prev_output_tokens`` [B, T], or only the last of them when decoding. Returns [T, B, C]."""
        positions = None
        if isinstance(self.embed_positions, torch.nn.Embedding):  # sinusoidal ones have no end
            self._check_positions(prev_output_tokens.size(1))
        if self.embed_positions is not None:
            positions = self.embed_positions(prev_output_tokens, incremental_state=incremental_state)
        if incremental_state is not None:
            prev_output_tokens = prev_output_tokens[:, -1:]
            positions = None if positions is None else positions[:, -1:]
        x = drop_words(self.embed_scale * self.embed_tokens(prev_output_tokens), self.word_dropout_module)
        for module in (self.quant_noise, self.project_in_dim):
            x = x if module is None else module(x)
        if positions is not None:
            x = x + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x).transpose(0, 1)

    def _check_positions(self, length: int) -> None:
        if length > self.max_positions():
            raise InputError(
                f"a sequence has {length} tokens, the model's positions end at {self.max_positions()}: "
                "shorten it, or "
                "train with a larger --max-target-positions"
            )

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[Dict[str, List[Tensor]]] = None,
        incremental_state: Optional[IncrementalState] = None,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
    ) -> Tuple[Tensor, Dict[str, List[Any]]]:
        """
        Args:
            prev_output_tokens: target shifted right [B, T]
            encoder_out: what :class:`LunaEncoder` returned; None without an encoder
            incremental_state: fairseq's store for decoding; the last token alone is new then
            full_context_alignment: must be False: Luna's causal attention has no such form
            alignment_layer: the layer whose weights over the source are returned (default: the last)
            alignment_heads: average over the first of its heads only (default: all)

        Returns:
            features [B, T, C], and ``attn`` [weights over source tokens B x T x S, or None], ``inner_states``

        Raises:
            InputError: more tokens than learned positions
        """
        if full_context_alignment:
            raise NotImplementedError("Luna's causal attention cannot attend to the full target context")
        last_layer = self.num_layers - 1
        context, initial_packed, masks = source_of(encoder_out, once=incremental_state is not None)
        x = self.forward_embedding(prev_output_tokens, incremental_state)
        first = (
            incremental_state is None or self.get_incremental_state(incremental_state, "hypotheses") is None
        )
        if incremental_state is not None and first:
            # Without a source there is one P for all.
            hypotheses = Hypotheses.in_a_row(x.size(1), 1 if context is None else context.size(1), x.device)
            self._store(incremental_state, hypotheses)
        new_tokens = prev_output_tokens[:, -x.size(0) :]
        padding_mask = new_tokens.eq(self.padding_idx)
        if padding_mask.any():
            masks["self_attn_padding_mask"] = padding_mask

        # Later steps of decoding read what the first one packed.
        anchors = self._find_anchors(context, initial_packed, masks) if first else None
        places = self._places(prev_output_tokens)
        places = None if places is None else places[:, -x.size(0) :]
        attn = None
        packed = initial_packed
        inner_states = [x]
        for i, layer in enumerate(self.layers):
            if alignment_layer is None:
                need_attn = i == last_layer and not self.training and layer.need_attn
            else:
                need_attn = i == alignment_layer
            x, packed, weights = layer(
                x,
                packed,
                context,
                incremental_state=incremental_state,
                need_attn=need_attn,
                anchors=anchors,
                target_place=places,
                **masks,
            )
            if self.cfg.non_contextual_packed:
                packed = initial_packed
            inner_states.append(x)
            attn = weights if weights is not None else attn
        if attn is not None:
            attn = attn[:alignment_heads].mean(dim=0)  # [B, T, S]
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)  # [B, T, C]
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attn], "inner_states": inner_states}

    def _find_anchors(
        self, context: Optional[Tensor], packed: Tensor, masks: Dict[str, Tensor]
    ) -> Optional[Anchors]:
        """The places of P's rows in the source, which all layers share; None without anchors."""
        if context is None or not self.cfg.anchored_packed:
            return None
        return find_anchors(
            context,
            packed,
            masks.get("encoder_padding_mask"),
            masks.get("packed_padding_mask"),
            self.cfg.decoder.projected_attention_heads,
            self.cfg.packed_lookup > 0,
            diagonal=self.cfg.diagonal_prior,
        )

    def _places(self, prev_output_tokens: Tensor) -> Optional[Tensor]:
        """The number of each token [B, T] in its target, padding not counted; None without a diagonal."""
        if not self.cfg.diagonal_prior:
            return None
        positions = make_positions(prev_output_tokens, self.padding_idx)
        return (positions - self.padding_idx - 1).clamp(min=0)

    def reorder_incremental_state_scripting(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Give hypothesis i the state that hypothesis ``new_order[i]`` had [N']; what it shares with the
        others of its sentence is touched only where sentences leave or change places."""
        super().reorder_incremental_state_scripting(incremental_state, new_order)
        saved = self.get_incremental_state(incremental_state, "hypotheses")
        kept = None if saved is None else Hypotheses(saved["sentences"]).reorder(new_order)
        if kept is None:
            return
        left, hypotheses = kept
        for module in self.modules():
            if isinstance(module, (FairseqLunaAttention, FairseqLunaCausalAttention)):
                module.keep_sentences(incremental_state, left)
        self._store(incremental_state, hypotheses)

    def _store(self, incremental_state: IncrementalState, hypotheses: Hypotheses) -> None:
        self.set_incremental_state(incremental_state, "hypotheses", {"sentences": hypotheses.sentences})


def source_of(
    encoder_out: Optional[Dict[str, List[Any]]], once: bool
) -> Tuple[Optional[Tensor], Optional[Tensor], Dict[str, Tensor]]:
    """Context [S, B, C], P [L, B, C] and their padding masks from an encoder's output, ``once`` for all the
    hypotheses of a sentence or for each row of it."""
    if encoder_out is None:
        return None, None, {}
    beams = encoder_out["hypotheses"][0].each if once else 1
    names = ("encoder_padding_mask", "packed_padding_mask")
    masks = {name: mask[::beams] for name in names for mask in encoder_out[name]}
    return encoder_out["encoder_out"][0][:, ::beams], encoder_out["packed_out"][0][:, ::beams], masks
