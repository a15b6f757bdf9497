"""PyTorch modules that are exported to ONNX graphs.

A model without a decoder is one graph. Decoding needs two: the initial state, and one step.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.huggingface.comparison import random_tokens
from luna_fairseq.huggingface.decoder import LunaCache
from luna_fairseq.huggingface.modeling_luna import LunaModelOutput
from luna_fairseq.modules.memory import map_tensors
from luna_fairseq.modules.state import DecoderState, LayerState

# Names of tensors in the graphs.
MASK = "packed_mask"  # mask of P [B, L], 1 at rows in use
SEEN = "seen"  # number of tokens of each text read so far [B]


def source_tokens(model: Any, batch: int, length: int) -> Tensor:
    """Return random token ids as input of a model, padded on the right.

    Args:
        model: exported model.
        batch: batch size B.
        length: length T of the first sequence. The next sequences have T / 2, T / 6, T, ... tokens.

    Returns:
        Token ids [B, T].
    """
    lengths = [max(1, length // (1, 2, 6)[row % 3]) for row in range(batch)]
    return random_tokens(source_size(model.config), lengths, model.config.pad_token_id)


def source_size(config: Any) -> int:
    """Return the size of the vocabulary of the input.

    Args:
        config: configuration of an exported model.
    """
    return getattr(config, "source_vocab_size", None) or config.vocab_size


class WholeModel(nn.Module):
    """Model without a decoder, which maps token ids to logits.

    Args:
        model: exported masked language model or classifier.
    """

    input_names, output_names = ["input_ids"], ["logits"]

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tuple[Tensor]:
        """Compute the logits.

        Args:
            *inputs: token ids [B, T], the only input.

        Returns:
            Logits, in a tuple of one element.
        """
        return (self.model(inputs[0], return_dict=True).logits,)


def named_tensors(state: DecoderState) -> Dict[str, Tensor]:
    """Return the tensors of all layers of a decoding state by name.

    Args:
        state: decoding state of all layers.

    Returns:
        Tensors by names such as "layer0_causal_key_sum". A tensor that the state holds twice has one name.
    """
    tensors: Dict[str, Tensor] = {}
    for number, layer in enumerate(state.layers):
        for part, values in zip(("causal", "source"), layer):
            for field, value in zip(getattr(values, "_fields", ()), values or ()):
                if isinstance(value, Tensor) and not any(value is other for other in tensors.values()):
                    tensors[f"layer{number}_{part}_{field}"] = value
    return tensors


class InitialState(nn.Module):
    """ONNX part that encodes the source and returns the decoding state before the first target token.

    The state is obtained from a decoding step on a padding token. Such a step leaves the state as it was.

    Args:
        model: exported model with a decoder. Without an encoder only the batch size of the input matters.
    """

    input_names = ["input_ids"]

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        with torch.no_grad():
            state, _ = self.compute_state(source_tokens(model, 2, 3))
        self.example = state
        self.output_names = [*named_tensors(state), SEEN, *mask_names(model)]

    def compute_state(self, input_ids: Tensor) -> Tuple[DecoderState, Optional[LunaModelOutput]]:
        """Compute the initial state.

        Args:
            input_ids: token ids [B, T] of the source.

        Returns:
            Initial state, and the output of the encoder or None without an encoder.
        """
        source, decoder = None, self.model.luna
        if self.model.config.is_encoder_decoder:
            source, decoder = self.model.luna.encoder(input_ids, return_dict=True), self.model.luna.decoder
        padding = torch.full_like(input_ids[:, :1], self.model.config.pad_token_id)
        out = decoder(padding, encoder_outputs=source, use_cache=True, return_dict=True)
        return expand_packed(out.past_key_values.state, input_ids.size(0)), source

    def forward(self, *inputs: Tensor) -> Tuple[Tensor, ...]:
        """Compute the initial state as a tuple of tensors.

        Args:
            *inputs: token ids [B, T] of the source, the only input.

        Returns:
            Tensors with the names in ``output_names``.
        """
        state, source = self.compute_state(inputs[0])
        masks = (getattr(source, name) for name in mask_names(self.model))
        return (*named_tensors(state).values(), state.count, *masks)


def mask_names(model: Any) -> List[str]:
    """Return the names of the masks that a decoding step reads.

    Args:
        model: exported model with a decoder.

    Returns:
        The name of the mask of the packed sequence P. If attention reads all source tokens, also the name of
        the source mask. Empty without an encoder.
    """
    config = model.config
    if not config.is_encoder_decoder:
        return []
    return [MASK, "source_mask"] if config.cross_attention == "softmax" else [MASK]


def expand_packed(state: DecoderState, rows: int) -> DecoderState:
    """Expand the projected packed sequence P of each layer to one copy for each hypothesis.

    Args:
        state: decoding state, in which all hypotheses may share one projected P.
        rows: number of hypotheses.

    Returns:
        State in which the projected P of each layer has the shape [``rows``, H, L, K].
    """

    def expand(layer: LayerState) -> LayerState:
        pack_q = layer.causal.pack_q.expand(rows, -1, -1, -1)
        return layer._replace(causal=layer.causal._replace(pack_q=pack_q))

    return state._replace(layers=tuple(expand(layer) for layer in state.layers))


class DecodingStep(nn.Module):
    """One step of the decoder, which reads one token of each sentence.

    A sentence whose token is padding keeps its state.

    Args:
        model: exported model with a decoder.
        initial: module that computes the initial state.
    """

    def __init__(self, model: Any, initial: InitialState):
        super().__init__()
        self.model = model
        self.example = initial.example
        self.input_names = ["token", *initial.output_names]
        self.changing = [name for name in initial.output_names if self.is_changing(name)]
        self.output_names: List[str] = ["logits", *(f"next_{name}" for name in self.changing)]

    @staticmethod
    def is_changing(name: str) -> bool:
        """Return True if a tensor of the state changes from step to step.

        Args:
            name: name of the tensor, from :func:`named_tensors`.
        """
        return name == SEEN or "_causal_" in name and not name.endswith("pack_q")

    def forward(self, *inputs: Tensor) -> Tuple[Tensor, ...]:
        """Compute the logits of the next token and the next state.

        Args:
            *inputs: token [B, 1] of each sentence, then the tensors of the state in the order of
                ``input_names``.

        Returns:
            Logits [B, V], then the tensors of the next state that change.
        """
        token, state = inputs[0], dict(zip(self.input_names[1:], inputs[1:]))
        source, decoder = None, self.model.luna
        if self.model.config.is_encoder_decoder:
            decoder = self.model.luna.decoder
            # The state holds the packed source. The decoder does not read the encoder's output again, so an
            # empty tensor takes its place.
            unused = decoder.embed_tokens.weight.new_zeros(1, 1, self.model.config.encoder_embed_dim)
            mask = state.get("source_mask", token.ne(-1))
            source = LunaModelOutput(unused, unused, state[MASK], mask)
        cache = LunaCache(self.build_state(state))
        out = decoder(token, encoder_outputs=source, past_key_values=cache, return_dict=True)
        next_state = out.past_key_values.state
        next_tensors = {**named_tensors(next_state), SEEN: next_state.count}
        logits = self.model.lm_head(out.last_hidden_state)[:, -1]
        return (logits, *(next_tensors[name] for name in self.changing))

    def build_state(self, state: Dict[str, Tensor]) -> DecoderState:
        """Build a decoding state from named tensors.

        Args:
            state: tensors by the names in ``input_names``.

        Returns:
            The decoding state.
        """
        names = {id(value): name for name, value in named_tensors(self.example).items()}
        layers = map_tensors(lambda x: state[names[id(x)]], self.example.layers)
        return DecoderState(layers, state[SEEN], 0)
