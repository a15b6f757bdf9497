"""Compare an exported model with the fairseq model on sequences of many lengths."""

from typing import Any, List, Sequence, Tuple

import torch
from torch import Tensor

from luna_fairseq.anchored.segments import DENSE_LENGTH
from luna_fairseq.errors import InputError
from luna_fairseq.huggingface.conversion import Kind

# Largest difference relative to the largest logit. A larger difference is a defect of the export.
LARGEST_DIFFERENCE = 1e-4
LONG_LENGTH = 200  # number of tokens of a long sequence


def compare(model: Any, exported: Any, kind: Kind) -> None:
    """Check that an exported model computes the logits of the fairseq model.

    Args:
        model: fairseq model in evaluation mode.
        exported: exported model in evaluation mode.
        kind: kind of the model.

    Raises:
        InputError: The logits differ by more than rounding.
    """
    with torch.no_grad():
        expected, actual = compute_logits(model, exported, kind)
    difference = (actual - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
    if not difference <= LARGEST_DIFFERENCE:
        raise InputError(
            f"The exported model differs from the checkpoint by {difference:.1e}. Please report this defect"
        )


def batch_lengths(config: Any, longest: int) -> List[List[int]]:
    """Return sequence lengths on both sides of each length at which the computation changes.

    The computation changes at the length of the packed sequence P, and at the largest length that a look-up
    attends to densely.

    Args:
        config: configuration of the exported model.
        longest: largest sequence length that the model accepts.

    Returns:
        Lengths of two batches in decreasing order. The first batch has short sequences only, the second has
        short and long sequences.
    """
    boundaries = config.projection_length, DENSE_LENGTH
    lengths = {1, 2, LONG_LENGTH, *(boundary + step for boundary in boundaries for step in (-1, 0, 1))}
    mixed = sorted({min(max(length, 1), longest) for length in lengths}, reverse=True)
    return [[length for length in mixed if length <= DENSE_LENGTH], mixed]


def random_tokens(size: int, lengths: Sequence[int], pad: int) -> Tensor:
    """Return random token ids, padded on the right.

    Args:
        size: size of the vocabulary. Ids are drawn from 4 to ``size`` - 1, above the special tokens.
        lengths: number of tokens of each sequence.
        pad: id of the padding token.

    Returns:
        Token ids [B, T]. Equal arguments give equal ids.

    Example:
        >>> random_tokens(5, [3, 1], pad=1)
        tensor([[4, 4, 4],
                [4, 1, 1]])
    """
    generator = torch.Generator().manual_seed(lengths[0])
    tokens = torch.randint(4, size, (len(lengths), max(lengths)), generator=generator)
    return tokens.masked_fill(torch.arange(tokens.size(1)) >= torch.tensor(lengths)[:, None], pad)


def longest_sequence(config: Any, side: str) -> int:
    """Return the length of the longest sequence to compare.

    Args:
        config: configuration of the exported model.
        side: "encoder" or "decoder", the side that reads the sequence.
    """
    positions = config.max_source_positions if side == "encoder" else config.max_target_positions
    return min(positions, max(LONG_LENGTH, config.projection_length + 1))


def compute_logits(model: Any, exported: Any, kind: Kind) -> Tuple[Tensor, Tensor]:
    """Compute the logits of both models on several batches.

    Args:
        model: fairseq model in evaluation mode.
        exported: exported model in evaluation mode.
        kind: kind of the model.

    Returns:
        Logits of the fairseq model and of the exported model, [N, V] each. N counts the tokens of all
        batches, or the sequences if the model is a classifier.
    """
    config = exported.config
    if getattr(config, "reads_pixels", False):
        pixels = torch.linspace(-1, 1, 2 * model.max_positions()).view(2, -1)
        return model(pixels), exported(pixel_values=pixels).logits
    sides = ["decoder"] if config.model_type == "luna_lm" else ["encoder"]
    sides += ["decoder"] if config.is_encoder_decoder else []
    longest = min(longest_sequence(config, side) for side in sides)
    pairs = [
        _batch_logits(model, exported, kind, random_tokens(config.vocab_size, lengths, config.pad_token_id))
        for lengths in batch_lengths(config, longest)
    ]
    expected, actual = (torch.cat(logits) for logits in zip(*pairs))
    return expected, actual


def _batch_logits(model: Any, exported: Any, kind: Kind, tokens: Tensor) -> Tuple[Tensor, Tensor]:
    """Compute the logits of both models for a batch.

    Args:
        model: model of fairseq.
        exported: model of transformers.
        kind: kind of the model.
        tokens: token ids [B, T].

    Returns:
        Logits of the model of fairseq, and logits of the model of transformers.
    """
    config = exported.config
    if kind.model == "LunaForSequenceClassification":
        return model(tokens, classification_head_name=kind.head)[0], exported(tokens).logits
    if kind.model == "LunaForLongSequenceClassification":
        if config.pair_combination:
            second = tokens.flip(0)
            return model(tokens, None, second), exported(tokens, second_input_ids=second).logits
        return model(tokens), exported(tokens).logits
    is_token = tokens.ne(config.pad_token_id)
    if kind.model == "LunaForConditionalGeneration":
        source = (tokens.flip(0) % config.source_vocab_size).clamp(min=4).masked_fill(~is_token.flip(0), 1)
        actual = exported(source, decoder_input_ids=tokens).logits
        return model(source, None, tokens)[0][is_token], actual[is_token]
    return model(tokens)[0][is_token], exported(tokens).logits[is_token]
