"""Logits of an exported model and of its ONNX graphs, computed for the same batches."""

from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.huggingface.comparison import batch_lengths, length_to_compare, random_tokens
from luna_fairseq.huggingface.onnx_parts import source_vocabulary_size

STEPS = 4  # number of target tokens on which a translation model is compared
Arrays = Dict[str, np.ndarray]


def example_sizes(config: Any) -> Tuple[Tuple[int, int], ...]:
    """Return three pairs (batch size, length): the first for the traced example, the others for comparisons.

    If the model allows it, the traced example is longer than P. The segments into which anchored attention
    divides the example then have more than one token.
    """
    longest = length_to_compare(config, "decoder" if config.model_type == "luna_lm" else "encoder")
    length = min(max(11, config.projection_length + 1), longest)
    return (3, length), (1, min(5, length)), (4, length + 12 if length + 12 <= longest else length - 1)


def batches_to_compare(config: Any) -> List[Tensor]:
    """Return random batches of token ids [B, T] for the comparison of a model with its ONNX graphs.

    Some batches are padded on the right, some are single sequences and, for a model with a decoder, some are
    padded on the left. :func:`batch_lengths` chooses the lengths.
    """
    side = "decoder" if config.model_type == "luna_lm" else "encoder"
    size, pad = source_vocabulary_size(config), config.pad_token_id
    lengths = batch_lengths(config, length_to_compare(config, side))
    right_padded = [random_tokens(size, batch, pad) for batch in lengths]
    single = [random_tokens(size, batch[:1], pad) for batch in lengths]
    if not config.is_encoder_decoder and side == "encoder":
        # Classification heads use the first position, which must be a token.
        return right_padded + single
    left_padded = [torch.stack([row.roll(int(row.eq(pad).sum())) for row in batch]) for batch in right_padded]
    return right_padded + single + left_padded


def compute_model_logits(model: Any, batch: Tensor) -> Tensor:
    """Compute the logits of an exported model for token ids [B, T], for comparison with its ONNX graphs.

    The logits are [B, target tokens, V] for a translation model, [B, V] for a classifier, and
    [tokens without padding, V] for a language model, where V is the number of tokens or classes.
    """
    config = model.config
    if config.is_encoder_decoder:
        return model(batch, decoder_input_ids=target_tokens(config, batch)).logits
    logits = model(batch).logits
    return logits if logits.dim() == 2 else logits[batch.ne(config.pad_token_id)]


def compute_graph_logits(config: Any, folder: Path, batch: Tensor) -> Tensor:
    """Compute the logits of the ONNX graphs in a folder, with the shapes of :func:`compute_model_logits`."""
    is_token = batch.ne(config.pad_token_id)
    if (folder / "model.onnx").is_file():
        logits = torch.from_numpy(Graph(folder / "model.onnx")({"input_ids": batch.numpy()})["logits"])
        return logits if logits.dim() == 2 else logits[is_token]
    decode = Graph(folder / "decoder.onnx")
    if config.is_encoder_decoder:
        memory = Graph(folder / "encoder.onnx")({"input_ids": batch.numpy()})
        return decode_step_by_step(decode, memory, target_tokens(config, batch))
    return decode_step_by_step(decode, {}, batch)[is_token]


def target_tokens(config: Any, batch: Tensor) -> Tensor:
    """Return a decoder input [B, 4] for a batch of sources: the start token, followed by random tokens."""
    tokens = random_tokens(config.vocab_size, [STEPS] * len(batch), config.pad_token_id)
    return tokens.index_fill(1, torch.tensor([0]), config.decoder_start_token_id)


class Graph:
    """ONNX graph run by onnxruntime. A call maps named input arrays to named output arrays.

    Arrays that are not inputs of the graph are ignored.
    """

    def __init__(self, path: Path):
        import onnxruntime

        # Its own log would repeat the error that is raised below.
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        self.name, self.session = path.name, onnxruntime.InferenceSession(str(path), options)
        self.inputs = self.session.get_inputs()
        self.output_names = [node.name for node in self.session.get_outputs()]

    def __call__(self, arrays: Arrays) -> Arrays:
        given = {node.name: arrays[node.name] for node in self.inputs}
        try:
            return dict(zip(self.output_names, self.session.run(None, given)))
        except Exception as error:  # onnxruntime raises errors of many classes without a common one.
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in given.items())
            raise InputError(
                f"{self.name} fails for {shapes}: {error}. Please report this defect."
            ) from error

    def first_state(self, batch: int) -> Arrays:
        """Return the decoding state before the first token: arrays of zeros for ``batch`` sequences."""
        states = [node for node in self.inputs if node.name.startswith("state_")]
        types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
        return {node.name: np.zeros((batch, *node.shape[1:]), types[node.type]) for node in states}


def decode_step_by_step(decode: Graph, memory: Arrays, tokens: Tensor) -> Tensor:
    """Compute the logits [B, T, V] for token ids [B, T], calling the graph ``decode`` once per position.

    ``memory`` holds the outputs of the encoder's graph, and is empty for a language model.
    """
    logits, state = [], decode.first_state(len(tokens))
    for token in tokens.t():
        outputs = decode({"token": token[:, None].numpy(), **memory, **state})
        logits.append(torch.from_numpy(outputs.pop("logits")))
        state = {name[len("next_") :]: value for name, value in outputs.items()}
    return torch.stack(logits, dim=1)
