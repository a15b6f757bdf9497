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


def some_tokens(size: int, longest: int, pad: int) -> Tensor:
    """Three sequences [3, T] of tokens below ``size``, padded on the right."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, size, (3, longest), generator=generator)
    tokens[1, longest // 2 :] = pad
    tokens[2, max(1, longest // 6) :] = pad
    return tokens


def outputs(model: Any, exported: Any, kind: Kind) -> Tuple[Tensor, Tensor]:
    """Logits of both, where there are tokens."""
    config = exported.config
    # Longer than P, and than what look-ups read whole.
    longest = min(config.max_position_embeddings, max(3 * config.projection_length, 80))
    tokens = some_tokens(config.vocab_size, longest, config.pad_token_id) if config.vocab_size > 4 else None
    return _OUTPUTS[kind.model](model, exported, tokens, kind)


def _masked_lm(model: Any, exported: Any, tokens: Tensor, kind: Kind) -> Tuple[Tensor, Tensor]:
    there = tokens.ne(exported.config.pad_token_id)
    return model(tokens)[0][there], exported(tokens).logits[there]


def _fine_tuned(model: Any, exported: Any, tokens: Tensor, kind: Kind) -> Tuple[Tensor, Tensor]:
    head = kind.names[-1][0].split(".")[1]
    return model(tokens, classification_head_name=head)[0], exported(tokens).logits


def _long_classifier(model: Any, exported: Any, tokens: Tensor, kind: Kind) -> Tuple[Tensor, Tensor]:
    if exported.config.reads_pixels:
        pixels = torch.linspace(-1, 1, 2 * model.max_positions()).view(2, -1)
        return model(pixels), exported(pixel_values=pixels).logits
    if exported.config.pair_combination:
        return model(tokens, None, tokens.flip(0)), exported(tokens, second_input_ids=tokens.flip(0)).logits
    return model(tokens), exported(tokens).logits


def _causal_lm(model: Any, exported: Any, tokens: Tensor, kind: Kind) -> Tuple[Tensor, Tensor]:
    there = tokens.ne(exported.config.pad_token_id)
    return model(tokens)[0][there], exported(tokens).logits[there]


def _translation(model: Any, exported: Any, tokens: Tensor, kind: Kind) -> Tuple[Tensor, Tensor]:
    target = tokens.flip(0)
    there = target.ne(exported.config.pad_token_id)
    source = (tokens % exported.config.source_vocab_size).clamp(min=4).masked_fill(tokens.eq(1), 1)
    found = exported(source, decoder_input_ids=target).logits
    return model(source, None, target)[0][there], found[there]


_OUTPUTS = {
    "LunaForMaskedLM": _masked_lm,
    "LunaForSequenceClassification": _fine_tuned,
    "LunaForLongSequenceClassification": _long_classifier,
    "LunaForCausalLM": _causal_lm,
    "LunaForConditionalGeneration": _translation,
}
