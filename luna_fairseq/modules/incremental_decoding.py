"""Decoding step by step: what is kept in fairseq's store, and how it and the encoder's output follow
beam search."""

from typing import Any, Dict, List, Optional, Tuple

from torch import Tensor

from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.models import FairseqEncoder, FairseqIncrementalDecoder
from luna_fairseq.errors import InputError
from luna_fairseq.modules.beams import Hypotheses
from luna_fairseq.modules.causal_state import LunaCausalState
from luna_fairseq.modules.sentences import IncrementalState, Sentences


class IncrementalLayer(FairseqIncrementalState):
    """A decoder layer's steps: the store keeps the cache of the source, and the sums of causal attention."""

    def step(self, x: Tensor, packed: Optional[Tensor], sentences: Sentences) -> Tensor:
        """Causal attention of the positions [T, B, C] after those in the store."""
        state = self.stored(sentences.incremental_state, "causal_sums", LunaCausalState)
        if self.packed_embedding is not None and (state is None or state.pack_q is None):
            # All hypotheses share one P: it depends on nothing but the layer.
            packed, _ = self.packed_embedding(x.new_full((1,), x.size(0)))
        masks = sentences.target_padding_mask, sentences.packed_padding_mask
        output, state = self.self_attn.step(x, packed, state, *masks)
        self.set_incremental_state(sentences.incremental_state, "causal_sums", state._asdict())
        return output

    def attend_with_cache(
        self,
        x: Tensor,
        packed: Optional[Tensor],
        context: Tensor,
        sentences: Sentences,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """Attention to a context that is packed at the first step, which raises InputError without P; P may
        be None, and the packed context is, from then on."""
        attention, packed_context = self.encoder_attn, None
        cache = self.stored(sentences.incremental_state, "packed_context", attention.cache_type)
        if cache is None:
            if packed is None:
                raise InputError("no packed sequence was given, and no earlier step has kept what it packed")
            packed_context, pack_weights = attention.pack(packed, context, sentences, need_weights)
            cache = attention.cache(packed_context, pack_weights, context, sentences)
            self.set_incremental_state(sentences.incremental_state, "packed_context", cache._asdict())
        output, weights = attention.unpack(x, cache, sentences, need_weights)
        return output, packed_context, weights

    def stored(self, incremental_state: IncrementalState, name: str, kind: Any) -> Any:
        """The named tuple of type ``kind`` that earlier steps of decoding have stored, or None."""
        saved = self.get_incremental_state(incremental_state, name)
        return None if saved is None else kind(**saved)

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Give hypothesis i the sums that hypothesis ``new_order[i]`` had. new_order: [N']."""
        state = self.stored(incremental_state, "causal_sums", LunaCausalState)
        if state is not None:
            self.set_incremental_state(incremental_state, "causal_sums", state.reorder(new_order)._asdict())

    def select_sentences(self, incremental_state: IncrementalState, left: Tensor) -> None:
        """Keep what belongs to the sentences ``left`` [B'], in that order."""
        kinds = {"causal_sums": LunaCausalState}
        if self.encoder_attn is not None:
            kinds["packed_context"] = self.encoder_attn.cache_type
        for name, kind in kinds.items():
            saved = self.stored(incremental_state, name, kind)
            if saved is not None:
                self.set_incremental_state(incremental_state, name, saved.select(left)._asdict())


class IncrementalDecoder(FairseqIncrementalDecoder):
    """A decoder whose hypotheses of a sentence share what is computed of its source."""

    def begin_decoding(
        self, incremental_state: IncrementalState, tokens: Tensor, context: Optional[Tensor]
    ) -> None:
        if self.get_incremental_state(incremental_state, "hypotheses") is None:
            # Without a source there is one P for all.
            sentences = 1 if context is None else context.size(1)
            self._store(incremental_state, Hypotheses.in_a_row(tokens.size(0), sentences, tokens.device))

    def reorder_incremental_state_scripting(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Give hypothesis i the state that hypothesis ``new_order[i]`` had [N']; what it shares with the
        others of its sentence is touched only where sentences leave or change places."""
        for layer in self.layers:  # all that keep something: fairseq looks for them among all modules
            layer.reorder_incremental_state(incremental_state, new_order)
        saved = self.get_incremental_state(incremental_state, "hypotheses")
        kept = None if saved is None else Hypotheses(saved["sentences"]).reorder(new_order)
        if kept is None:
            return
        left, hypotheses = kept
        for layer in self.layers:
            layer.select_sentences(incremental_state, left)
        self._store(incremental_state, hypotheses)

    def _store(self, incremental_state: IncrementalState, hypotheses: Hypotheses) -> None:
        self.set_incremental_state(incremental_state, "hypotheses", {"sentences": hypotheses.sentences})


class IncrementalEncoder(FairseqEncoder):
    """An encoder whose output says which sentence every hypothesis belongs to."""

    def reorder_encoder_out(
        self, encoder_out: Dict[str, List[Any]], new_order: Tensor
    ) -> Dict[str, List[Any]]:
        """``encoder_out`` with row ``new_order[i]`` at place i [B']; itself where hypotheses of a sentence
        changed places."""
        sentences = encoder_out["encoder_out"][0].size(1)
        before = encoder_out["hypotheses"] or [Hypotheses.in_a_row(sentences, sentences, new_order.device)]
        after = before[0].reorder(new_order)
        if after is None:
            return encoder_out
        # fairseq overwrites the entries of this list; the one it was given stays as it is.
        encoder_out = {**encoder_out, "encoder_states": list(encoder_out["encoder_states"])}
        reordered = super().reorder_encoder_out(encoder_out, new_order)
        for name in ("packed_out", "packed_states"):
            reordered[name] = [packed.index_select(1, new_order) for packed in encoder_out[name]]
        reordered["has_padding"] = encoder_out["has_padding"]
        masks = encoder_out["packed_padding_mask"]
        reordered["packed_padding_mask"] = [mask.index_select(0, new_order) for mask in masks]
        reordered["hypotheses"] = [after[1]]
        return reordered
