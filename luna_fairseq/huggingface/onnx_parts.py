"""PyTorch modules that are exported to ONNX graphs.

A masked language model or classifier is exported as one graph (:class:`WholeModel`). A translation model is
exported as two graphs: :class:`InitialState` and :class:`DecodingStep`. They take and return the decoding
state as separate named tensors, because ONNX graphs do not support other data structures.
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
MASK = "packed_mask"  # mask [B, L] of the packed sequence P, 1 at vectors in use
SEEN = "seen"  # number [B] of tokens that the decoder has processed per text


def random_source(model: Any, batch: int, length: int) -> Tensor:
    """Return random token ids as input for an exported model, padded on the right.

    Args:
        model: exported model.
        batch: number of sequences.
        length: length of the first sequence. The sequence lengths repeat the pattern ``length``, ``length``
            // 2, ``length`` // 6.

    Returns:
        Token ids [``batch``, ``length``].
    """
    lengths = [max(1, length // (1, 2, 6)[row % 3]) for row in range(batch)]
    return random_tokens(source_vocabulary_size(model.config), lengths, model.config.pad_token_id)


def source_vocabulary_size(config: Any) -> int:
    """Return the vocabulary size of the model's input.

    Args:
        config: configuration of an exported model.

    Returns:
        Source vocabulary size for a translation model, or size of the only vocabulary for any other model.
    """
    return getattr(config, "source_vocab_size", None) or config.vocab_size


class WholeModel(nn.Module):
    """Module for the graph of a masked language model or classifier, which maps token ids to logits.

    Args:
        model: exported model without a decoder.
    """

    input_names, output_names = ["input_ids"], ["logits"]

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tuple[Tensor]:
        """Compute the logits of a batch.

        Args:
            *inputs: token ids [B, T] for B sequences of up to T tokens, the only input.

        Returns:
            Tuple that contains only the logits.
        """
        return (self.model(inputs[0], return_dict=True).logits,)


def named_tensors(state: DecoderState) -> Dict[str, Tensor]:
    """Flatten a decoding state into named tensors.

    Args:
        state: decoding state of all layers.

    Returns:
        Tensors keyed by name, such as "layer0_causal_key_sum". A tensor that occurs twice in the state is
        included only once.
    """
    tensors: Dict[str, Tensor] = {}
    for number, layer in enumerate(state.layers):
        for part, values in zip(("causal", "source"), layer):
            for field, value in zip(getattr(values, "_fields", ()), values or ()):
                if isinstance(value, Tensor) and not any(value is other for other in tensors.values()):
                    tensors[f"layer{number}_{part}_{field}"] = value
    return tensors


class InitialState(nn.Module):
    """Module for the graph that encodes a source and returns the state before the first decoding step.

    A decoding step on a padding token yields this state, because padding leaves the state unchanged.

    Args:
        model: exported model with a decoder. If the model has no encoder, only the batch size of the input
            matters.

    Attributes:
        example: example decoding state, used as a template to rebuild a state from its tensors.
        output_names: names of the tensors that ``forward`` returns.
    """

    input_names = ["input_ids"]

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        with torch.no_grad():
            state, _ = self.compute_state(random_source(model, 2, 3))
        self.example = state
        self.output_names = [*named_tensors(state), SEEN, *mask_names(model)]

    def compute_state(self, input_ids: Tensor) -> Tuple[DecoderState, Optional[LunaModelOutput]]:
        """Compute the decoding state before the first target token.

        Args:
            input_ids: token ids [B, S] for B sources of up to S tokens.

        Returns:
            Decoding state, and the encoder output (None if the model has no encoder).
        """
        source, decoder = None, self.model.luna
        if self.model.config.is_encoder_decoder:
            source, decoder = self.model.luna.encoder(input_ids, return_dict=True), self.model.luna.decoder
        padding = torch.full_like(input_ids[:, :1], self.model.config.pad_token_id)
        out = decoder(padding, encoder_outputs=source, use_cache=True, return_dict=True)
        return expand_packed(out.past_key_values.state, input_ids.size(0)), source

    def forward(self, *inputs: Tensor) -> Tuple[Tensor, ...]:
        """Compute the decoding state before the first target token as a tuple of tensors.

        Args:
            *inputs: token ids [B, S] for B sources of up to S tokens, the only input.

        Returns:
            Tensors in the order of ``output_names``.
        """
        state, source = self.compute_state(inputs[0])
        masks = (getattr(source, name) for name in mask_names(self.model))
        return (*named_tensors(state).values(), state.count, *masks)


def mask_names(model: Any) -> List[str]:
    """Return the names of the source masks that a decoding step needs.

    Args:
        model: exported model with a decoder.

    Returns:
        "packed_mask", the mask of the packed sequence P, and also "source_mask" if cross-attention attends to
        all source tokens. Empty if the model has no encoder.
    """
    config = model.config
    if not config.is_encoder_decoder:
        return []
    return [MASK, "source_mask"] if config.cross_attention == "softmax" else [MASK]


def expand_packed(state: DecoderState, num_hypotheses: int) -> DecoderState:
    """Expand the projected packed sequence P so that each hypothesis has its own copy.

    Before expansion, all hypotheses may share one projected P. In the ONNX graphs, all tensors have the same
    batch size.

    Args:
        state: decoding state of all layers.
        num_hypotheses: number of hypotheses N.

    Returns:
        State in which the first dimension of each layer's projected P is N.
    """

    def expand(layer: LayerState) -> LayerState:
        pack_q = layer.causal.pack_q.expand(num_hypotheses, -1, -1, -1)
        return layer._replace(causal=layer.causal._replace(pack_q=pack_q))

    return state._replace(layers=tuple(expand(layer) for layer in state.layers))


class DecodingStep(nn.Module):
    """Module for the graph of one decoding step, which processes one token per sentence.

    A padding token leaves the state of its sentence unchanged.

    Args:
        model: exported model with a decoder.
        initial: module that computes the initial decoding state.

    Attributes:
        input_names: "token", followed by the names of the state tensors.
        output_names: "logits", followed by "next_NAME" for each state tensor that a step updates.
    """

    def __init__(self, model: Any, initial: InitialState):
        super().__init__()
        self.model = model
        self.example = initial.example
        self.input_names = ["token", *initial.output_names]
        # A step updates the sums and the count, but neither the projected P nor the packed source.
        sums = (LayerState(layer.causal._replace(pack_q=None)) for layer in self.example.layers)
        changing = [*named_tensors(self.example._replace(layers=tuple(sums))), SEEN]
        self.changing = [name for name in initial.output_names if name in changing]
        self.output_names: List[str] = ["logits", *(f"next_{name}" for name in self.changing)]

    def forward(self, *inputs: Tensor) -> Tuple[Tensor, ...]:
        """Compute the logits of the next token, and the next decoding state.

        Args:
            *inputs: token ids [B, 1], one per sentence, followed by the state tensors in the order of
                ``input_names``.

        Returns:
            Logits [B, V], where V is the vocabulary size, followed by the updated state tensors in the order
            of ``output_names``.
        """
        token, state = inputs[0], dict(zip(self.input_names[1:], inputs[1:]))
        source, decoder = None, self.model.luna
        if self.model.config.is_encoder_decoder:
            decoder = self.model.luna.decoder
            # The state contains everything that the decoder needs from the source except the batch size. A
            # dummy tensor replaces the encoder output.
            unused = decoder.embed_tokens.weight.new_zeros(token.size(0), 1, 1)
            mask = state.get("source_mask", token.ne(-1))
            source = LunaModelOutput(unused, unused, state[MASK], mask)
        cache = LunaCache(self.build_state(state))
        out = decoder(token, encoder_outputs=source, past_key_values=cache, return_dict=True)
        next_state = out.past_key_values.state
        next_tensors = {**named_tensors(next_state), SEEN: next_state.count}
        logits = self.model.lm_head(out.last_hidden_state)[:, -1]
        return (logits, *(next_tensors[name] for name in self.changing))

    def build_state(self, state: Dict[str, Tensor]) -> DecoderState:
        """Rebuild a decoding state from named tensors, the inverse of :func:`named_tensors`.

        Args:
            state: state tensors, keyed by name.

        Returns:
            The decoding state.
        """
        names = {id(value): name for name, value in named_tensors(self.example).items()}
        layers = map_tensors(lambda x: state[names[id(x)]], self.example.layers)
        return DecoderState(layers, state[SEEN], 0)
