"""Diverse beam search of a test set."""

from typing import Any, Callable

from luna_fairseq.engine.mend import RIGHT, Mend

DIVERSE_BEAMS = Mend(
    "diverse-beams",
    RIGHT,
    what="searches with --diverse-beam-groups in every batch",
    why="it looks up a sentence's penalties by its number in the test set, not by its place in the batch: an "
    "IndexError, or without a word another sentence's penalties",
)


@DIVERSE_BEAMS.around("fairseq.search:DiverseBeamSearch.step")
def _by_place_in_the_batch(
    search_step: Callable[..., Any],
    self: Any,
    step: int,
    lprobs: Any,
    scores: Any,
    prev_output_tokens: Any = None,
    original_batch_idxs: Any = None,
) -> Any:
    if original_batch_idxs is not None:
        if step == 0:
            self.batch_began_with = original_batch_idxs
        same = original_batch_idxs.unsqueeze(1) == self.batch_began_with.unsqueeze(0)
        original_batch_idxs = same.int().argmax(dim=1)
    return search_step(self, step, lprobs, scores, prev_output_tokens, original_batch_idxs)
