"""Comparison of the logits of an exported model and its fairseq model at several sequence lengths."""

from typing import Any, List, Sequence, Tuple

import torch
from torch import Tensor

from luna_fairseq.anchored.segments import DENSE_LENGTH
from luna_fairseq.errors import InputError
from luna_fairseq.huggingface.conversion import ModelKind

# Maximum difference relative to the largest logit. A larger difference indicates a defect in the export.
LARGEST_DIFFERENCE = 1e-4
LONG_LENGTH = 200  # number of tokens in a long sequence


def check_logits(model: Any, exported: Any, kind: ModelKind) -> None:
    """Raise InputError if an exported model and the fairseq model give different logits for random tokens."""
    with torch.no_grad():
        expected, actual = compute_logits(model, exported, kind)
    difference = (actual - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
    if not difference <= LARGEST_DIFFERENCE:
        raise InputError(
            f"The exported model differs from the checkpoint by {difference:.1e}. Please report this defect."
        )


def batch_lengths(config: Any, longest: int) -> List[List[int]]:
    """Return the sequence lengths of two batches for a comparison of models, each at most ``longest``.

    They include lengths around 64 (``DENSE_LENGTH``) and around the length of P, where the models'
    computation changes. The first batch has only lengths up to 64.
    """
    boundaries = config.projection_length, DENSE_LENGTH
    lengths = {1, 2, LONG_LENGTH, *(boundary + step for boundary in boundaries for step in (-1, 0, 1))}
    mixed = sorted({min(max(length, 1), longest) for length in lengths}, reverse=True)
    return [[length for length in mixed if length <= DENSE_LENGTH], mixed]


def random_tokens(size: int, lengths: Sequence[int], pad: int) -> Tensor:
    """Return random token ids [B, T] between 4 and ``size`` - 1 for B sequences, padded on the right.

    T is the maximum of the B ``lengths``, and ``pad`` the padding id. The first length is the seed.
    """
    generator = torch.Generator().manual_seed(lengths[0])
    tokens = torch.randint(4, size, (len(lengths), max(lengths)), generator=generator)
    return tokens.masked_fill(torch.arange(tokens.size(1)) >= torch.tensor(lengths)[:, None], pad)


def length_to_compare(config: Any, side: str) -> int:
    """Return the maximum sequence length for a comparison of models. ``side`` is "encoder" or "decoder".

    The result exceeds the length of the packed sequence P if the model has enough positions.
    """
    positions = config.max_source_positions if side == "encoder" else config.max_target_positions
    return min(positions, max(LONG_LENGTH, config.projection_length + 1))


def compute_logits(model: Any, exported: Any, kind: ModelKind) -> Tuple[Tensor, Tensor]:
    """Compute the logits of a fairseq model and its exported model for the same random inputs.

    Both are [number of tokens, vocabulary size] or, for a classifier, [number of sequences, classes].
    """
    config = exported.config
    if getattr(config, "reads_pixels", False):
        pixels = torch.linspace(-1, 1, 2 * model.max_positions()).view(2, -1)
        return model(pixels), exported(pixel_values=pixels).logits
    sides = ["decoder"] if config.model_type == "luna_lm" else ["encoder"]
    sides += ["decoder"] if config.is_encoder_decoder else []
    longest = min(length_to_compare(config, side) for side in sides)
    all_expected, all_actual = [], []
    for lengths in batch_lengths(config, longest):
        tokens = random_tokens(config.vocab_size, lengths, config.pad_token_id)
        expected, actual = _compute_batch_logits(model, exported, kind, tokens)
        all_expected.append(expected)
        all_actual.append(actual)
    return torch.cat(all_expected), torch.cat(all_actual)


def _compute_batch_logits(
    model: Any, exported: Any, kind: ModelKind, tokens: Tensor
) -> Tuple[Tensor, Tensor]:
    """Compute the logits of both models for token ids [B, T], omitting positions with padding."""
    config = exported.config
    if kind.class_name == "LunaForSequenceClassification":
        return model(tokens, classification_head_name=kind.head)[0], exported(tokens).logits
    if kind.class_name == "LunaForLongSequenceClassification":
        if config.pair_combination:
            second = tokens.flip(0)
            return model(tokens, None, second), exported(tokens, second_input_ids=second).logits
        return model(tokens), exported(tokens).logits
    is_token = tokens.ne(config.pad_token_id)
    if kind.class_name == "LunaForConditionalGeneration":
        source = (tokens.flip(0) % config.source_vocab_size).clamp(min=4).masked_fill(~is_token.flip(0), 1)
        actual = exported(source, decoder_input_ids=tokens).logits
        return model(source, None, tokens)[0][is_token], actual[is_token]
    return model(tokens)[0][is_token], exported(tokens).logits[is_token]
