"""Check that an exported model and the fairseq model compute the same logits for many sequence lengths."""

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
    """Check that an exported model computes the same logits as the fairseq model.

    The maximum allowed difference is 1e-4 times the largest logit.

    Args:
        model: fairseq model in evaluation mode.
        exported: exported model in evaluation mode.
        kind: kind of model, from :func:`luna_fairseq.huggingface.conversion.find_kind`.

    Raises:
        InputError: The logits differ by more than rounding error.
    """
    with torch.no_grad():
        expected, actual = compute_logits(model, exported, kind)
    difference = (actual - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
    if not difference <= LARGEST_DIFFERENCE:
        raise InputError(
            f"The exported model differs from the checkpoint by {difference:.1e}. Please report this defect."
        )


def batch_lengths(config: Any, longest: int) -> List[List[int]]:
    """Return the sequence lengths of two batches that together cover every case of the computation.

    Some steps are computed differently for short and for long sequences. The lengths are just below, at and
    just above these thresholds: the length of the packed sequence P, and ``DENSE_LENGTH``, the largest source
    length at which cross-attention with a token lookup is dense.

    Args:
        config: configuration of the exported model.
        longest: maximum sequence length of the model.

    Returns:
        Lengths of two batches, each in decreasing order. The first batch contains only short sequences, the
        second both short and long ones.
    """
    boundaries = config.projection_length, DENSE_LENGTH
    lengths = {1, 2, LONG_LENGTH, *(boundary + step for boundary in boundaries for step in (-1, 0, 1))}
    mixed = sorted({min(max(length, 1), longest) for length in lengths}, reverse=True)
    return [[length for length in mixed if length <= DENSE_LENGTH], mixed]


def random_tokens(size: int, lengths: Sequence[int], pad: int) -> Tensor:
    """Return random token ids, padded on the right.

    Args:
        size: vocabulary size. Ids are drawn from 4 to ``size`` - 1, because lower ids are special tokens.
        lengths: number of tokens in each of the B sequences. The maximum is T.
        pad: id of the padding token.

    Returns:
        Token ids [B, T]. The same arguments always produce the same ids.

    Example:
        >>> random_tokens(5, [3, 1], pad=1)
        tensor([[4, 4, 4],
                [4, 1, 1]])
    """
    generator = torch.Generator().manual_seed(lengths[0])
    tokens = torch.randint(4, size, (len(lengths), max(lengths)), generator=generator)
    return tokens.masked_fill(torch.arange(tokens.size(1)) >= torch.tensor(lengths)[:, None], pad)


def length_to_compare(config: Any, side: str) -> int:
    """Return the length of the longest sequence on which two models are compared.

    Args:
        config: configuration of the exported model.
        side: "encoder" or "decoder", the part of the model that processes the sequence.

    Returns:
        Number of tokens. It exceeds the length of the packed sequence P if the model accepts that many
        tokens.
    """
    positions = config.max_source_positions if side == "encoder" else config.max_target_positions
    return min(positions, max(LONG_LENGTH, config.projection_length + 1))


def compute_logits(model: Any, exported: Any, kind: ModelKind) -> Tuple[Tensor, Tensor]:
    """Compute the logits of the fairseq model and of the exported model on the same random batches.

    Args:
        model: fairseq model in evaluation mode.
        exported: exported model in evaluation mode.
        kind: kind of model.

    Returns:
        Logits of the fairseq model and of the exported model, each [N, V]. N is the number of tokens in all
        batches and V the vocabulary size. For a classifier, N is the number of sequences and V the number of
        classes.
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
    """Compute the logits of the fairseq model and of the exported model for one batch.

    Args:
        model: fairseq model in evaluation mode.
        exported: exported model in evaluation mode.
        kind: kind of model. It determines the arguments of both models.
        tokens: token ids [B, T] for B sequences of up to T tokens.

    Returns:
        Logits of the fairseq model and of the exported model, excluding padding positions.
    """
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
