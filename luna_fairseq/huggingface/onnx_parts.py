"""The graphs of an exported model: what begins decoding, one step of it, or a whole model."""

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.huggingface.comparison import some_tokens
from luna_fairseq.huggingface.decoder import LunaCache
from luna_fairseq.huggingface.modeling_luna import LunaModelOutput
from luna_fairseq.modules.memory import map_tensors
from luna_fairseq.modules.state import DecoderState, LayerState

MASK = "packed_mask"  # of the rows of P that count [B, L], which every step reads
SEEN = "seen"  # number of tokens so far [B]


def source_tokens(model: Any, batch: int, length: int) -> Tensor:
    """Return random tokens [B, T] that ``model`` reads. Sequences have ``length`` tokens, half and a sixth as
    many in turns."""
    lengths = [max(1, length // (1, 2, 6)[row % 3]) for row in range(batch)]
    return some_tokens(source_size(model.config), lengths, model.config.pad_token_id)


def source_size(config: Any) -> int:
    """Return the size of the vocabulary that a model with this configuration reads."""
    return getattr(config, "source_vocab_size", None) or config.vocab_size


class Whole(nn.Module):
    """A model without decoder: input_ids [B, T] -> logits."""

    input_names, output_names = ["input_ids"], ["logits"]

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, *given: Tensor) -> Tuple[Tensor]:
        return (self.model(given[0], return_dict=True).logits,)


def tensors_of(state: DecoderState) -> Dict[str, Tensor]:
    """Return the tensors of all layers by name; a tensor that has two names once."""
    found: Dict[str, Tensor] = {}
    for number, layer in enumerate(state.layers):
        for part, kept in zip(("causal", "source"), layer):
            for field, value in zip(getattr(kept, "_fields", ()), kept or ()):
                if isinstance(value, Tensor) and not any(value is other for other in found.values()):
                    found[f"layer{number}_{part}_{field}"] = value
    return found


class Start(nn.Module):
    """Graph that computes the initial decoding state, which is the state after nothing but padding.

    It maps input_ids [B, T] of the source to the tensors of the state. Without an encoder only B matters.
    """

    input_names = ["input_ids"]

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        with torch.no_grad():
            state, _ = self.begin(source_tokens(model, 2, 3))
        self.example = state
        self.output_names = [*tensors_of(state), SEEN, *mask_names(model)]

    def begin(self, input_ids: Tensor) -> Tuple[DecoderState, Optional[LunaModelOutput]]:
        """Return the state and the encoder's output for ``input_ids`` [B, T]."""
        source, decoder = None, self.model.luna
        if self.model.config.is_encoder_decoder:
            source, decoder = self.model.luna.encoder(input_ids, return_dict=True), self.model.luna.decoder
        padding = torch.full_like(input_ids[:, :1], self.model.config.pad_token_id)
        out = decoder(padding, encoder_outputs=source, use_cache=True, return_dict=True)
        return expand_packed(out.past_key_values.state, input_ids.size(0)), source

    def forward(self, *given: Tensor) -> Tuple[Tensor, ...]:
        state, source = self.begin(given[0])
        masks = (getattr(source, name) for name in mask_names(self.model))
        return (*tensors_of(state).values(), state.count, *masks)


def mask_names(model: Any) -> List[str]:
    """Return the names of the masks that every step reads: of P, and of a source that is read by itself."""
    config = model.config
    if not config.is_encoder_decoder:
        return []
    return [MASK, "source_mask"] if config.cross_attention == "softmax" else [MASK]


def expand_packed(state: DecoderState, rows: int) -> DecoderState:
    """Return ``state`` with the projected P of each row, also if all rows share it."""

    def expand(layer: LayerState) -> LayerState:
        pack_q = layer.causal.pack_q.expand(rows, -1, -1, -1)
        return layer._replace(causal=layer.causal._replace(pack_q=pack_q))

    return state._replace(layers=tuple(expand(layer) for layer in state.layers))


class Step(nn.Module):
    """Graph of one decoding step. It maps token [B, 1] and the state to logits [B, V] and the tensors of the
    state that have changed. A row whose token is padding keeps its state."""

    def __init__(self, model: Any, start: Start):
        super().__init__()
        self.model = model
        self.example = start.example
        self.input_names = ["token", *start.output_names]
        self.changing = [name for name in start.output_names if self.changes(name)]
        self.output_names: List[str] = ["logits", *(f"next_{name}" for name in self.changing)]

    @staticmethod
    def changes(name: str) -> bool:
        return name == SEEN or "_causal_" in name and not name.endswith("pack_q")

    def forward(self, *given: Tensor) -> Tuple[Tensor, ...]:
        token, state = given[0], dict(zip(self.input_names[1:], given[1:]))
        source, decoder = None, self.model.luna
        if self.model.config.is_encoder_decoder:
            decoder = self.model.luna.decoder
            # What was packed is in the state; of the source itself nothing is read any more.
            nothing = decoder.embed_tokens.weight.new_zeros(1, 1, self.model.config.encoder_embed_dim)
            mask = state.get("source_mask", token.ne(-1))
            source = LunaModelOutput(nothing, nothing, state[MASK], mask)
        cache = LunaCache(self.fill(state))
        out = decoder(token, encoder_outputs=source, past_key_values=cache, return_dict=True)
        kept = out.past_key_values.state
        after = {**tensors_of(kept), SEEN: kept.count}
        logits = self.model.lm_head(out.last_hidden_state)[:, -1]
        return (logits, *(after[name] for name in self.changing))

    def fill(self, state: Dict[str, Tensor]) -> DecoderState:
        """Return the decoder's state whose tensors are those of ``state``."""
        names = {id(value): name for name, value in tensors_of(self.example).items()}
        layers = map_tensors(lambda x: state[names[id(x)]], self.example.layers)
        return DecoderState(layers, state[SEEN], 0)
