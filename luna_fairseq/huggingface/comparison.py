"""Compare an exported model with fairseq's on sequences of many lengths."""

from typing import Any, List, Sequence, Tuple

import torch
from torch import Tensor

from luna_fairseq.anchored.segments import DENSE_LENGTH
from luna_fairseq.errors import InputError
from luna_fairseq.huggingface.conversion import Kind

LARGEST_DIFFERENCE = 1e-4  # relative to the largest logit; larger is a fault of the export
LONG = 200  # tokens of a long sequence


def compare(model: Any, exported: Any, kind: Kind) -> None:
    """Raise InputError when fairseq's ``model`` and ``exported`` differ on sequences of several lengths."""
    with torch.no_grad():
        expected, found = outputs(model, exported, kind)
    difference = (found - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
    if not difference <= LARGEST_DIFFERENCE:
        raise InputError(
            f"the exported model differs from the checkpoint's by {difference:.1e}: please report this"
        )


def lengths_of_batches(config: Any, longest: int) -> List[List[int]]:
    """Return the lengths of two batches that lie on both sides of every length at which a model branches.

    These are the number of rows of P, and the number of tokens that a look-up reads whole. The first batch
    has short sequences alone, the second short and long ones.

    Args:
        config: configuration of the exported model
        longest: length of the longest sequence that the model reads
    """
    marks = config.projection_length, DENSE_LENGTH
    lengths = {1, 2, LONG, *(mark + step for mark in marks for step in (-1, 0, 1))}
    every = sorted({min(max(length, 1), longest) for length in lengths}, reverse=True)
    return [[length for length in every if length <= DENSE_LENGTH], every]


def some_tokens(size: int, lengths: Sequence[int], pad: int) -> Tensor:
    """Return random tokens [B, T] from 4 to ``size`` - 1, in sequences of these ``lengths`` padded on the
    right."""
    generator = torch.Generator().manual_seed(lengths[0])
    tokens = torch.randint(4, size, (len(lengths), max(lengths)), generator=generator)
    return tokens.masked_fill(torch.arange(tokens.size(1)) >= torch.tensor(lengths)[:, None], pad)


def longest_sequence(config: Any, side: str) -> int:
    """Return the number of tokens of the longest sequence to compare. ``side`` is encoder or decoder."""
    positions = config.max_source_positions if side == "encoder" else config.max_target_positions
    return min(positions, max(LONG, config.projection_length + 1))


def outputs(model: Any, exported: Any, kind: Kind) -> Tuple[Tensor, Tensor]:
    """Return the logits of fairseq's ``model`` and of the ``exported`` one at tokens, for several batches."""
    config = exported.config
    if getattr(config, "reads_pixels", False):
        pixels = torch.linspace(-1, 1, 2 * model.max_positions()).view(2, -1)
        return model(pixels), exported(pixel_values=pixels).logits
    sides = ["decoder"] if config.model_type == "luna_lm" else ["encoder"]
    sides += ["decoder"] if config.is_encoder_decoder else []
    longest = min(longest_sequence(config, side) for side in sides)
    pairs = [
        _outputs(model, exported, kind, some_tokens(config.vocab_size, lengths, config.pad_token_id))
        for lengths in lengths_of_batches(config, longest)
    ]
    expected, found = (torch.cat([x.flatten(0, -2) for x in each]) for each in zip(*pairs))
    return expected, found


def _outputs(model: Any, exported: Any, kind: Kind, tokens: Tensor) -> Tuple[Tensor, Tensor]:
    """Return the logits of both models for a batch of tokens [B, T]."""
    config = exported.config
    if kind.model == "LunaForSequenceClassification":
        return model(tokens, classification_head_name=kind.head)[0], exported(tokens).logits
    if kind.model == "LunaForLongSequenceClassification":
        if config.pair_combination:
            second = tokens.flip(0)
            return model(tokens, None, second), exported(tokens, second_input_ids=second).logits
        return model(tokens), exported(tokens).logits
    there = tokens.ne(config.pad_token_id)
    if kind.model == "LunaForConditionalGeneration":
        source = (tokens.flip(0) % config.source_vocab_size).clamp(min=4).masked_fill(~there.flip(0), 1)
        found = exported(source, decoder_input_ids=tokens).logits
        return model(source, None, tokens)[0][there], found[there]
    return model(tokens)[0][there], exported(tokens).logits[there]
