"""What a masked language model predicts from: ``python -m luna_fairseq.masked_lm.context_use DATA --path
CHECKPOINT``.

The perplexity of the masked tokens of a split with the context as it is; with the tokens in view put into
random order, which leaves the words but not their places; and with the tokens next to each masked one masked
as well. For Luna's models and fairseq's RoBERTa; masks and random orders are the same for every model of one
dictionary.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any, Callable, Dict, Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq.models.roberta import RobertaModel
from luna_fairseq.commands.checkpoint import checkpoint_script, load, load_split, on_device_of
from luna_fairseq.errors import InputError

PROGRAM = "python -m luna_fairseq.masked_lm.context_use"
# What is done to tokens [B, T], given what must stay in place [B, T], the targets' places [B, T], <mask>,
# randomness.
Change = Callable[[Tensor, Tensor, Tensor, int, torch.Generator], Tensor]


def _report(args: argparse.Namespace) -> None:
    model, task = load(args)
    if not isinstance(model, RobertaModel) or not hasattr(task, "mask_idx"):
        raise InputError(
            f"{args.path} is no masked language model: give one of pretraining, Luna's or RoBERTa"
        )
    number, batches = load_split(args, task)
    found = measure_context_use(model, batches, task)
    print(f"{args.valid_subset}: {number:,} sequences; perplexity of masked tokens")
    for name, perplexity in found.items():
        print(f"  {name:26s} {perplexity:8.1f}")


def keep(tokens: Tensor, fixed: Tensor, predicted: Tensor, mask: int, random: torch.Generator) -> Tensor:
    """The context as it is."""
    return tokens


def shuffle(tokens: Tensor, fixed: Tensor, predicted: Tensor, mask: int, random: torch.Generator) -> Tensor:
    """The tokens in view in random order, in each sequence; masked and special ones stay."""
    changed = tokens.clone()
    for row, stays in zip(changed, fixed | predicted):
        places = (~stays).nonzero().squeeze(1)
        row[places] = row[places[torch.randperm(len(places), generator=random).to(places.device)]]
    return changed


def hide_neighbours(
    tokens: Tensor, fixed: Tensor, predicted: Tensor, mask: int, random: torch.Generator
) -> Tensor:
    """The tokens to the left and right of a masked one masked, too."""
    near = F.max_pool1d(predicted.float().unsqueeze(1), kernel_size=3, stride=1, padding=1).squeeze(1).bool()
    return tokens.masked_fill(near & ~predicted & ~fixed, mask)


CHANGES: Dict[str, Change] = {
    "context as it is": keep,
    "context in random order": shuffle,
    "neighbours masked, too": hide_neighbours,
}


def measure_context_use(model: RobertaModel, batches: Iterable[Any], task: Any) -> Dict[str, float]:
    """Perplexity of the masked tokens for each of ``CHANGES``, over fairseq's batches of the task masked_lm.
    Raises InputError where no token is masked."""
    losses, count = dict.fromkeys(CHANGES, 0.0), 0
    random = torch.Generator().manual_seed(1)
    dictionary = task.source_dictionary
    with torch.no_grad():
        for batch in batches:
            batch = on_device_of(model, batch)
            tokens, target = batch["net_input"]["src_tokens"], batch["target"]
            predicted = target.ne(dictionary.pad())
            if not predicted.any():
                continue
            fixed = tokens.eq(dictionary.pad()) | tokens.eq(dictionary.bos()) | tokens.eq(dictionary.eos())
            for name, change in CHANGES.items():
                changed = change(tokens, fixed, predicted, task.mask_idx, random)
                logits = model(changed, masked_tokens=predicted)[0]
                losses[name] += F.cross_entropy(logits.float(), target[predicted], reduction="sum").item()
            count += int(predicted.sum())
    if not count:
        raise InputError("no token of the split is masked: there is nothing to predict")
    return {name: math.exp(loss / count) for name, loss in losses.items()}


main = checkpoint_script(PROGRAM, __doc__, _report)


if __name__ == "__main__":
    sys.exit(main())
