"""Every kind of model gives the same scores in every way in which its checkpoint can be used.

The reference is one call of the fairseq model in float64 on a single sequence without padding. Combinations
that do not exist are skipped with a reason.
"""

import logging
from typing import Any, Optional

import pytest
import torch
from kinds import CAUSAL, KINDS, TRANSLATION, Item, Kind, items, write_checkpoint

pytest.importorskip("transformers")

import ways  # noqa: E402

from luna_fairseq.models.int8 import has_exact_8_bit_sums  # noqa: E402

WAYS = {
    "fairseq's model": ways.Forward,
    "fairseq's generator": ways.Search,
    "Python": ways.Python,
    "8 bits": ways.InEightBits,
    "average": ways.Averaged,
    "import back": ways.Imported,
    "transformers": ways.Transformers,
    "transformers with a cache": ways.Cached,
    "generate": ways.Generate,
    "ONNX": ways.Onnx,
}
# fairseq's search sums log-probabilities in float32, and ONNX computes in float32.
TOLERANCES = {"fairseq's generator": 2e-4, "Python": 1e-5, "generate": 1e-6, "ONNX": 3e-4}
EXACT = 1e-12
# Maximum difference between a model in 8 bits and the model in float64.
IN_8_BITS = 0.15
# The same if queries choose other segments, as they do on CPUs that need weights of 7 bits.
WITH_OTHER_SEGMENTS = 0.5
# Maximum change if rounding moves a value to the next 8-bit level, and mean change over a batch.
OF_NEIGHBOURS, IN_THE_MEAN = 0.05, 0.002
DECODERS_ALONE = "the model writes no text"
CALLED = "called as fairseq's model is; the other properties compare its numbers"


def why_nonexistent(way: str, kind: Kind) -> Optional[str]:
    """Return the reason why a way does not exist for a kind of model, or None if it exists."""
    if way == "8 bits" and not kind.has_decoder:
        return "only models with a decoder have weights in 8 bits"
    if way in ("fairseq's generator", "transformers with a cache", "generate") and not kind.has_decoder:
        return DECODERS_ALONE
    if way == "Python" and kind.is_lra:
        return "classifiers of Long Range Arena have no Python interface"
    if way == "ONNX" and "sentence_diagonal" in kind.options:
        return "a model that counts sentences is refused"
    return None


def alone(way: str, kind: Kind) -> Optional[str]:
    return "the definition" if way == "fairseq's model" else None


def in_a_batch(side: str, way: str, kind: Kind) -> Optional[str]:
    of_transformers = ("transformers", "transformers with a cache", "generate", "ONNX")
    if side == "left" and kind.job != TRANSLATION and way not in of_transformers:
        return "fairseq pads all sequences but sources of translations on the right"
    return None


def after_a_prefix(way: str, kind: Kind) -> Optional[str]:
    if not kind.has_decoder:
        return DECODERS_ALONE
    if way in ("fairseq's model", "8 bits", "average", "import back", "transformers"):
        return CALLED
    return None


def second_turn(way: str, kind: Kind) -> Optional[str]:
    if way == "fairseq's generator":
        return "a second turn is a longer prefix"
    if way == "Python" and kind.job == TRANSLATION:
        return "a translation has one turn"
    return after_a_prefix(way, kind)


def plain_text(way: str, kind: Kind) -> Optional[str]:
    if way == "fairseq's model":
        return "the definition"
    if way == "fairseq's generator":
        return "fairseq-interactive has tests of its own, which start it"
    if way in ("8 bits", "average", "import back"):
        return CALLED
    if way == "ONNX":
        return "the folder has the tokenizer of the other exported folder"
    if way == "transformers with a cache" or (way == "transformers" and kind.has_decoder):
        return "text is written by generate"
    return None


def make_parameters(why_not: Any) -> Any:
    """Return test parameters for all kinds and ways. Combinations that do not exist are marked as skipped.

    Args:
        why_not: function ``(way, kind)`` that returns a reason to skip the combination, or None.
    """
    cells = []
    for name, kind in KINDS.items():
        for way in WAYS:
            reason = why_nonexistent(way, kind) or why_not(way, kind)
            marks = [pytest.mark.skip(reason=reason)] if reason else []
            marks += [pytest.mark.slow, pytest.mark.guard] if way == "ONNX" else []
            cells.append(pytest.param(name, way, marks=marks))
    return cells


class World:
    """Cache of the checkpoints of all kinds and of the loaded ways, filled at first use."""

    def __init__(self, factory: Any):
        self.factory, self.folders, self.ways, self.known = factory, {}, {}, {}

    def way(self, kind: str, way: str) -> Any:
        if kind not in self.folders:
            self.folders[kind] = self.factory.mktemp("kind")
            write_checkpoint(KINDS[kind], self.folders[kind])
        if (kind, way) not in self.ways:
            self.ways[kind, way] = WAYS[way](KINDS[kind], self.folders[kind])
        return self.ways[kind, way]

    def expected(self, kind: str, way: str, item: Item) -> torch.Tensor:
        """Return the scores of a single item by the reference, which is in 8 bits for the way "8 bits"."""
        way = way if way == "8 bits" else "fairseq's model"
        key = kind, way, str(item)
        if key not in self.known:
            self.known[key] = self.way(kind, way).scores([item])[0][1]
        return self.known[key]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # small models warn that they have few rows of P
    yield World(tmp_path_factory)
    logging.disable(level)


def some_items(kind: Kind, way: str, longest: int) -> Any:
    """Return the items of a kind. Targets are shortened for ways that generate token by token."""
    found = items(kind)
    if not WAYS[way].step_by_step:
        return found
    return [item._replace(target=item.target and [*item.target[:longest][:-1], 2]) for item in found]


def check(world: World, kind: str, way: str, given: Any, found: Any, tolerance: float) -> None:
    """Assert that the scores of a batch equal the scores of each item alone.

    Args:
        world: cache of checkpoints and ways.
        kind: name of the kind of model.
        way: name of the way.
        given: items of the batch.
        found: scores of the batch.
        tolerance: maximum difference.
    """
    assert len(found) == len(given)
    differences = []
    for item, (written, values) in zip(given, found):
        if written is not None:
            item = item._replace(target=written)
        expected = world.expected(kind, way, item)
        if written is not None:
            expected = expected[len(expected) - len(values) :]  # only tokens after the prompt have scores
        assert values.shape == expected.shape
        differences.append((values - expected).abs().flatten())
        largest = differences[-1].max().item()
        length = len(item.source or item.target)
        assert largest <= tolerance, f"{length} tokens: {largest:.1e} > {tolerance:.0e}"
    if way == "8 bits":
        assert torch.cat(differences).mean() <= IN_THE_MEAN


@pytest.mark.parametrize(("kind", "way"), make_parameters(alone))
def test_a_sequence_alone(kind, way, world):
    """The lengths lie on both sides of each length at which the computation changes."""
    model = world.way(kind, way)
    longest = 66 if KINDS[kind].job == CAUSAL else 3
    for item in some_items(KINDS[kind], way, longest):
        found = model.scores([item])
        if way == "8 bits":
            difference = (found[0][1] - world.expected(kind, "fairseq's model", item)).abs().max()
            chooses_segments = KINDS[kind].options.get("packed_lookup") and not has_exact_8_bit_sums()
            assert 0 < difference < (WITH_OTHER_SEGMENTS if chooses_segments else IN_8_BITS)
        else:
            check(world, kind, way, [item], found, TOLERANCES.get(way, EXACT))


@pytest.mark.parametrize(("kind", "way"), make_parameters(lambda *cell: in_a_batch("right", *cell)))
def test_padded_on_the_right(kind, way, world):
    longest = 200 if KINDS[kind].job == CAUSAL else 66
    check_batch(world, kind, way, some_items(KINDS[kind], way, longest), False)


def check_batch(world, kind, way, given, left):
    """Check all items in one batch, and the items of up to 65 tokens in another batch.

    A look-up reads the shorter batch with a mask.
    """
    tolerance = OF_NEIGHBOURS if way == "8 bits" else TOLERANCES.get(way, EXACT)
    for batch in [given] + [given[:6]] * (len(given) > 7):
        found = world.way(kind, way).scores(batch, left, 2)
        check(world, kind, way, batch, found, tolerance)


@pytest.mark.parametrize(("kind", "way"), make_parameters(lambda *cell: in_a_batch("left", *cell)))
def test_padded_on_the_left(kind, way, world):
    check_batch(world, kind, way, some_items(KINDS[kind], way, 6), True)


def take_prefixes(given, lengths):
    """Return the first tokens of each target, without EOS."""
    return [item.target[:-1][:length] for item, length in zip(given, lengths)]


@pytest.mark.parametrize(("kind", "way"), make_parameters(after_a_prefix))
def test_after_a_prefix(kind, way, world):
    """Prefixes of several lengths are continued, with sources padded on either side."""
    given = items(KINDS[kind])[-3:]
    prefixes = take_prefixes(given, (3, 64, 8))
    definition, model = world.way(kind, "fairseq's model"), world.way(kind, way)
    expected = [definition.continue_item(item, prefix) for item, prefix in zip(given, prefixes)]
    for left in (False, True):
        assert model.continue_items(given, prefixes, left) == expected


@pytest.mark.parametrize(("kind", "way"), make_parameters(second_turn))
def test_a_second_turn(kind, way, world):
    """A text is read and continued, then more text is read and continued."""
    given = items(KINDS[kind])[-3:]
    prefixes = take_prefixes(given, (3, 64, 8))
    more = take_prefixes(items(KINDS[kind], 5)[-3:], (7, 2, 60))
    definition, model = world.way(kind, "fairseq's model"), world.way(kind, way)
    first, second = model.two_turns(given, prefixes, more)
    for number, (item, prefix, line) in enumerate(zip(given, prefixes, more)):
        if first is None:  # a stream ends its first line before the second turn
            text = [*prefix, 2, *line]
        else:
            written = definition.continue_item(item, prefix)
            assert first[number] == written
            text = [*prefix, *written, *line]
        expected = definition.continue_item(item, text)
        if first is None:
            expected = [token for token in expected if token != 0]  # token 0 does not appear in text
        assert second[number] == expected


@pytest.mark.parametrize(("kind", "way"), make_parameters(plain_text))
def test_plain_text(kind, way, world):
    """Plain text is translated or continued, its mask is filled, or it is classified."""
    definition, model = world.way(kind, "fairseq's model"), world.way(kind, way)
    dictionary = definition.task.source_dictionary
    texts = []
    for item in items(KINDS[kind], 3)[:4]:
        words = [dictionary[token] for token in (item.source or item.target) if token > 3]
        if KINDS[kind].job == "masked LM":
            words[1] = "<mask>"
        texts.append(" ".join(words))
    for found, expected in zip(model.answer(texts), definition.answer(texts)):
        if isinstance(expected, torch.Tensor):
            assert (found - expected).abs().max() <= EXACT
        else:
            assert found == expected
