"""Diverse beam search of a test set."""

from typing import Any, Callable

import torch

from luna_fairseq.engine.mend import RIGHT, Mend

DIVERSE_BEAMS = Mend(
    "diverse-beams",
    RIGHT,
    what="searches with --diverse-beam-groups in every batch",
    why="it looks up a sentence's penalties by its number in the test set, not by its place in the batch: an "
    "IndexError, or without a word another sentence's penalties",
)


# Not around the search's own step, which TorchScript compiles.
@DIVERSE_BEAMS.around(
    "fairseq.sequence_generator:SequenceGenerator.generate",
    "fairseq.sequence_generator:SequenceGeneratorWithAlignment.generate",
)
def numbered_by_place(
    generate: Callable[..., Any], self: Any, models: Any, sample: Any, *args: Any, **kwargs: Any
) -> Any:
    """The translations of a batch whose sentences are numbered from 0."""
    if "id" in sample:
        sample = {**sample, "id": torch.arange(len(sample["id"]), device=sample["id"].device)}
    return generate(self, models, sample, *args, **kwargs)
