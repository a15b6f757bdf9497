"""The graphs of an exported model: what begins decoding, one step of it, or a whole model."""

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.huggingface.comparison import some_tokens
from luna_fairseq.huggingface.decoder import LayerState, LunaCache
from luna_fairseq.huggingface.modeling_luna import LunaModelOutput

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


def tensors_of(cache: LunaCache) -> Dict[str, Tensor]:
    """What ``cache`` holds, by name; a tensor that has two places once."""
    found: Dict[str, Tensor] = {}
    for number, layer in enumerate(cache.layers):
        for part, kept in zip(LayerState._fields, layer):
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
            cache, _ = self.begin(source_tokens(model, 2, 3))
        self.example = cache
        self.output_names = [*tensors_of(cache), SEEN, *([MASK] if model.config.is_encoder_decoder else [])]

    def begin(self, input_ids: Tensor) -> Tuple[LunaCache, Optional[LunaModelOutput]]:
        source, decoder = None, self.model.luna
        if self.model.config.is_encoder_decoder:
            source, decoder = self.model.luna.encoder(input_ids, return_dict=True), self.model.luna.decoder
        padding = torch.full_like(input_ids[:, :1], self.model.config.pad_token_id)
        out = decoder(padding, encoder_outputs=source, use_cache=True, return_dict=True)
        return out.past_key_values, source

    def forward(self, *given: Tensor) -> Tuple[Tensor, ...]:
        cache, source = self.begin(given[0])
        masks = () if source is None else (source.packed_mask,)
        return (*tensors_of(cache).values(), cache.seen, *masks)


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
            decoder, mask = self.model.luna.decoder, state[MASK]
            # What was packed is in the state; of the source itself nothing is read any more.
            nothing = decoder.embed_tokens.weight.new_zeros(1, 1, self.model.config.encoder_embed_dim)
            source = LunaModelOutput(nothing, nothing, mask, token.ne(-1))
        out = decoder(token, encoder_outputs=source, past_key_values=self.cache(state), return_dict=True)
        after = {**tensors_of(out.past_key_values), SEEN: out.past_key_values.seen}
        logits = self.model.lm_head(out.last_hidden_state)[:, -1]
        return (logits, *(after[name] for name in self.changing))

    def cache(self, state: Dict[str, Tensor]) -> LunaCache:
        """The cache whose tensors are those of ``state``."""
        values = {id(value): state[name] for name, value in tensors_of(self.example).items()}
        layers = [LayerState(*(_filled(kept, values) for kept in layer)) for layer in self.example.layers]
        return LunaCache(layers, state[SEEN], 0)


def _filled(kept: Any, values: Dict[int, Tensor]) -> Any:
    """A named tuple like ``kept`` with other tensors in their places; None of None."""
    if kept is None:
        return None
    return type(kept)(*(values.get(id(value)) if isinstance(value, Tensor) else value for value in kept))
