"""The exported model, loaded again, against fairseq's."""

from typing import Any, Tuple

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.huggingface.conversion import Kind

LARGEST_DIFFERENCE = 1e-4  # relative to the largest logit; larger is a fault of the export


def compare(model: Any, exported: Any, kind: Kind) -> None:
    """Raise InputError when fairseq's ``model`` and ``exported`` differ on sequences of several lengths."""
    with torch.no_grad():
        expected, found = outputs(model, exported, kind)
    difference = (found - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
    if not difference <= LARGEST_DIFFERENCE:
        raise InputError(
            f"the exported model differs from the checkpoint's by {difference:.1e}: please report this"
        )


def some_tokens(size: int, batch: int, longest: int, pad: int) -> Tensor:
    """Sequences [B, T] of tokens below ``size``, the second half as long as the first, the third a sixth: the
    rest is ``pad``."""
    generator = torch.Generator().manual_seed(longest)
    tokens = torch.randint(4, size, (batch, longest), generator=generator)
    for row, part in zip(tokens[1:], (2, 6)):
        row[max(1, longest // part) :] = pad
    return tokens


def outputs(model: Any, exported: Any, kind: Kind) -> Tuple[Tensor, Tensor]:
    """Logits of both, where there are tokens."""
    config = exported.config
    if getattr(config, "reads_pixels", False):
        pixels = torch.linspace(-1, 1, 2 * model.max_positions()).view(2, -1)
        return model(pixels), exported(pixel_values=pixels).logits
    # Longer than P, and than what look-ups read whole.
    longest = min(config.max_position_embeddings, max(3 * config.projection_length, 80))
    tokens = some_tokens(config.vocab_size, 3, longest, config.pad_token_id)
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
