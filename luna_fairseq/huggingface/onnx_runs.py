"""Run the graphs of an exported folder with onnxruntime, and the model that they were made from."""

from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
import torch
from torch import Tensor

from luna_fairseq.huggingface.comparison import lengths_of_batches, longest_sequence, some_tokens
from luna_fairseq.huggingface.onnx_parts import source_size

STEPS = 4  # tokens that a translation model's decoder is compared on
Arrays = Dict[str, np.ndarray]


def batches_to_compare(config: Any) -> List[Tensor]:
    """Return batches of tokens [B, T] on both sides of every length at which the model branches.

    Sequences are padded on the right. Batches padded on the left follow if padding on the left is allowed.
    """
    side = "decoder" if config.model_type == "luna_lm" else "encoder"
    size, pad = source_size(config), config.pad_token_id
    lengths = lengths_of_batches(config, longest_sequence(config, side))
    batches = [some_tokens(size, each, pad) for each in lengths]
    alone = [some_tokens(size, [each[0]], pad) for each in lengths]
    left = [torch.stack([row.roll(int(row.eq(pad).sum())) for row in batch]) for batch in batches]
    # The classification heads read the first position, which must be a token.
    return [*batches, *alone, *left] if config.is_encoder_decoder or side == "decoder" else [*batches, *alone]


def model_logits(model: Any, batch: Tensor) -> Tensor:
    """Return the logits of a transformers ``model`` at the tokens of a ``batch``, or at its targets."""
    config = model.config
    if config.is_encoder_decoder:
        return model(batch, decoder_input_ids=targets(config, batch)).logits
    logits = model(batch).logits
    return logits if logits.dim() == 2 else logits[batch.ne(config.pad_token_id)]


def graph_logits(config: Any, folder: Path, batch: Tensor) -> Tensor:
    """Return the same logits, computed by the graphs in ``folder``."""
    there = batch.ne(config.pad_token_id)
    if (folder / "model.onnx").is_file():
        logits = torch.from_numpy(open_graph(folder / "model.onnx")({"input_ids": batch.numpy()})["logits"])
        return logits if logits.dim() == 2 else logits[there]
    if config.is_encoder_decoder:
        state = open_graph(folder / "encoder.onnx")({"input_ids": batch.numpy()})
        return step_by_step(open_graph(folder / "decoder.onnx"), state, targets(config, batch))
    with np.load(str(folder / "start.npz")) as start:
        state = {name: np.repeat(value, len(batch), axis=0) for name, value in start.items()}
    return step_by_step(open_graph(folder / "decoder.onnx"), state, batch)[there]


def targets(config: Any, batch: Tensor) -> Tensor:
    """Return what a translation model's decoder reads [B, STEPS]: the start token, then random tokens."""
    tokens = some_tokens(config.vocab_size, [STEPS] * len(batch), config.pad_token_id)
    return tokens.index_fill(1, torch.tensor([0]), config.decoder_start_token_id)


def open_graph(path: Path) -> Callable[[Arrays], Arrays]:
    """Return a function that maps named arrays to the named outputs of the graph ``path``."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    read, written = [x.name for x in session.get_inputs()], [x.name for x in session.get_outputs()]
    return lambda given: dict(zip(written, session.run(None, {name: given[name] for name in read})))


def step_by_step(step: Callable[[Arrays], Arrays], state: Arrays, tokens: Tensor) -> Tensor:
    """Return the logits [B, T, V] of a decoder's graph that reads ``tokens`` [B, T] one by one."""
    found = []
    for token in tokens.t():
        after = step({"token": token[:, None].numpy(), **state})
        found.append(torch.from_numpy(after.pop("logits")))
        state = {**state, **{name[len("next_") :]: value for name, value in after.items()}}
    return torch.stack(found, dim=1)
