"""PyTorch modules that are exported to ONNX graphs.

A masked language model or classifier is one graph (:class:`WholeModel`). A model with a decoder has the graph
:class:`DecodingStep`. A translation model also has the graph :class:`ReadSource`. The graphs take and return
the decoding state as separate named tensors, because ONNX does not support other data structures.
Shapes: batch size B, S source tokens, T tokens, V tokens in the vocabulary.
"""

from typing import Any, List, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.huggingface.comparison import random_tokens
from luna_fairseq.modules.batch import Source
from luna_fairseq.modules.luna_decoder import LunaDecoder as Decoder
from luna_fairseq.modules.luna_encoder import EncoderOutput
from luna_fairseq.modules.memory import DecoderMemory, flatten_tensors


def random_source(model: Any, batch: int, length: int) -> Tensor:
    """Return random token ids [batch, length] for an exported model, padded on the right.

    The lengths of the sequences alternate between ``length``, ``length`` // 2 and ``length`` // 6.
    """
    lengths = [max(1, length // (1, 2, 6)[row % 3]) for row in range(batch)]
    return random_tokens(source_vocabulary_size(model.config), lengths, model.config.pad_token_id)


def source_vocabulary_size(config: Any) -> int:
    """Return the size of a model's source vocabulary, or of its only vocabulary."""
    return getattr(config, "source_vocab_size", None) or config.vocab_size


class WholeModel(nn.Module):
    """Module exported as the ONNX graph of a model without decoder, from token ids [B, T] to logits."""

    input_names, output_names = ["input_ids"], ["logits"]

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tuple[Tensor]:
        return (self.model(inputs[0], return_dict=True).logits,)


def name_tensors(prefix: str, values: Any) -> List[str]:
    """Return a name, such as ``state_layers_0_key_sum``, for each distinct tensor in nested named tuples.

    Names begin with ``prefix`` ("state"), and are in the order in which ``flatten_tensors`` returns tensors.
    """
    names: List[str] = []
    seen: List[Tensor] = []

    def visit(name: str, x: Any) -> None:
        if isinstance(x, Tensor) and not any(x is other for other in seen):
            names.append(name)
            seen.append(x)
        elif isinstance(x, tuple):
            for field, value in zip(getattr(x, "_fields", range(len(x))), x):
                visit(f"{name}_{field}", value)

    visit(prefix, values)
    return names


class ReadSource(nn.Module):
    """Module exported as the ONNX graph that encodes a source and returns the decoder's cached tensors.

    Attributes:
        example: cached tensors ("memory") of an example batch. Every batch has the same structure.
    """

    input_names = ["input_ids"]

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        with torch.no_grad():
            self.example = self.read(random_source(model, 2, 3))
        self.output_names = name_tensors("memory", self.example)

    def read(self, input_ids: Tensor) -> DecoderMemory:
        """Encode source token ids [B, S], and return the cached tensors that every decoding step uses."""
        out = self.model.luna.encoder(input_ids, return_dict=True)
        # The masks are passed even if no value is True, so that every batch has the same tensors.
        source = Source(out.source_mask.eq(0), out.packed_mask.eq(0))
        encoded = EncoderOutput(out.last_hidden_state.transpose(0, 1), out.packed.transpose(0, 1), source)
        memory = self.model.luna.decoder.read(encoded)
        if self.model.config.cross_attention == "softmax":
            return memory
        # Queries attend to no token directly, or the memory of the layers has a mask of them.
        return memory._replace(source=source._replace(padding_mask=None))

    def forward(self, *inputs: Tensor) -> Tuple[Tensor, ...]:
        """Encode a source, and return the decoder's cached tensors as a flat tuple.

        ``inputs`` holds only the source token ids [B, S].
        """
        return tuple(flatten_tensors(self.read(inputs[0]))[0])


class DecodingStep(nn.Module):
    """Module exported as the ONNX graph of one decoding step for one token per sentence.

    The inputs are "token", the tensors that the decoder caches for the source (``memory`` is an example), and
    the tensors of the state. In a language model, ``memory`` is the same for all sequences and is part of the
    graph. The outputs are "logits", and "next_NAME" for each tensor NAME of the state. A state of zeros marks
    the beginning of a sequence. A padding token leaves the state of its sentence unchanged.
    """

    def __init__(self, model: Any, memory: DecoderMemory):
        super().__init__()
        self.model, self.memory = model, memory
        self.decoder = model.luna.decoder if model.config.is_encoder_decoder else model.luna
        token = torch.full((2, 1), model.config.eos_token_id)
        self.state: Any
        with torch.no_grad():
            _, self.state = Decoder.forward(self.decoder, token, memory, keep_state=True)
        self.memory_names = [] if memory.is_shared else name_tensors("memory", memory)
        self.state_names = name_tensors("state", self.state)
        self.input_names = ["token", *self.memory_names, *self.state_names]
        self.output_names = ["logits", *(f"next_{name}" for name in self.state_names)]

    def first_state(self, batch: int) -> Tuple[Tensor, ...]:
        """Return the decoding state before the first token, as a flat tuple of tensors."""
        return tuple(x.new_zeros(batch, *x.shape[1:]) for x in flatten_tensors(self.state)[0])

    def forward(self, *inputs: Tensor) -> Tuple[Tensor, ...]:
        """Return a flat tuple of the logits [B, V] of the next tokens and the tensors of the new state.

        ``inputs`` are the token ids [B, 1], the tensors that the decoder caches for the source, if there is
        one, and the tensors of the state.
        """
        token, given, state = (
            inputs[0],
            inputs[1 : 1 + len(self.memory_names)],
            inputs[-len(self.state_names) :],
        )
        memory = self.memory
        if given:
            memory = flatten_tensors(memory)[1](given)
        before = flatten_tensors(self.state)[1](state)._replace(position=0)
        after: Any
        out, after = Decoder.forward(self.decoder, token, memory, before)
        return (self.model.lm_head(out.x)[:, -1], *flatten_tensors(after)[0])
