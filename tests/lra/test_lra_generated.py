"""Generated ListOps expressions and Pathfinder images: values, lengths and seeds."""

import hashlib
import re
import statistics

import numpy as np
import pytest

from luna_fairseq.errors import InputError
from luna_fairseq.lra import generated, pathfinder
from luna_fairseq.lra.listops import OPERATORS, draw_example, evaluate, parse


def independent_value(tokens):
    """Evaluate an expression by rewriting its innermost operations, without code of the package."""
    text = " ".join(tokens)
    functions = {
        "MIN": min,
        "MAX": max,
        "MED": lambda values: int(statistics.median(values)),
        "SM": lambda values: sum(values) % 10,
    }
    innermost = re.compile(r"\[(\w+)((?: \d)+) \]")
    while not re.fullmatch(r"\d", text):
        text, changes = innermost.subn(lambda m: str(functions[m[1]]([int(d) for d in m[2].split()])), text)
        assert changes, text
    return int(text)


def test_values():
    used = set()
    for number in range(40):
        tokens, value = draw_example(f"x{number}", 5, 120)
        assert 5 < len(tokens) < 120
        assert value == independent_value(tokens) == evaluate(tokens)
        used.update(tokens)
    assert used == {*OPERATORS, "]", *"0123456789"}


def test_published_lengths():
    for number in range(5):
        tokens, value = draw_example(f"y{number}", 500, 2000)
        assert 500 < len(tokens) < 2000 and value == independent_value(tokens)


def test_written_expression():
    text = "( ( ( ( [MED 1 ) 4 ) ( ( ( [SM 9 ) 8 ) ] ) ) ] )"
    assert parse(text) == ("[MED 1 4 [SM 9 8 ] ]".split(), 4)
    assert evaluate(["[MED", "1", "4", "]"]) == 2  # the median is rounded down


@pytest.mark.parametrize(
    "text, message",
    [
        ("[MAX 1 2", "1 ']'"),
        ("", "too early"),
        ("[MAX ]", "token 2, ']'"),
        ("1 ]", "token 2, ']'"),
        ("[MAX 1 x ]", "token 3, 'x'"),
        ("]", "token 1, ']'"),
        ("[MAX 1 ] 2", "token 4, '2'"),
    ],
)
def test_malformed_expressions(text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        parse(text)


SIZES = {"train": 7, "valid": 3, "test": 4}


def test_seed_processes_and_size_of_the_training_set():
    def draw(seed, sizes=SIZES, workers=1):
        return list(generated.generate_listops(seed, sizes, (2, 40), workers))

    first = draw(1)
    assert {split: sum(e[0] == split for e in first) for split in SIZES} == SIZES
    assert len({tuple(e[1][0]) for e in first}) == len(first)
    assert draw(1, workers=2) == first != draw(2)
    more = draw(1, {**SIZES, "train": 30})
    assert [e for e in more if e[0] != "train"] == [e for e in first if e[0] != "train"]


def test_too_few_expressions():
    with pytest.raises(InputError, match="only "):
        list(generated.generate_listops(1, {"train": 450, "valid": 1, "test": 1}, (2, 5), 1))
    with pytest.raises(InputError, match="min-length"):
        list(generated.generate_listops(1, SIZES, (50, 51), 1))


def test_pathfinder():
    examples = [pathfinder.draw_example(f"z{number}") for number in range(8)]
    again, label = pathfinder.draw_example("z0")
    assert np.array_equal(again, examples[0][0]) and label == examples[0][1]
    assert {label for _, label in examples} == {0, 1}
    for image, _ in examples:
        assert image.shape == (32, 32) and image.dtype == np.uint8
        assert image.max() == pathfinder.DOT_INTENSITY and (image == 0).mean() > 0.5
    assert len({image.tobytes() for image, _ in examples}) == len(examples)


def test_label_of_pathfinder_follows_the_paths(monkeypatch):
    seen = {}
    monkeypatch.setattr(pathfinder, "_render", lambda dashes, dots: seen.update(dashes=dashes, dots=dots))
    for number in range(4):
        _, label = pathfinder.draw_example(f"z{number}")
        ends = [seen["dashes"][place][side] for place, side in ((0, 0), (13, 1), (14, 0), (27, 1))]
        chosen = [ends.index(dot) // 2 for dot in seen["dots"]]
        assert (chosen[0] == chosen[1]) == bool(label)


# If a pinned value below changes, a seed no longer gives the data of earlier versions.
PINNED_SIZES = {"train": 2, "valid": 1, "test": 2}


def test_listops_of_a_seed_stays_the_same():
    examples = list(generated.generate_listops(1, PINNED_SIZES, (5, 60), 1))
    assert examples[0] == ("test", [[11, 7, 0, 4, 5, 14]], 7)
    assert [value for *_, value in examples] == [7, 4, 5, 3, 2]
    found = hashlib.sha256(repr(examples).encode()).hexdigest()
    assert found == "6993d5ea3ce7e94edce4d4a15b8b379c4b8f1bdb69c5092a179607acc7455554"


def test_pathfinder_of_a_seed_stays_the_same(monkeypatch):
    """Coordinates are compared in place of pixels, which depend on the version of Pillow."""
    monkeypatch.setattr(pathfinder, "_render", lambda dashes, dots: np.array([*dashes, dots]).round(2))
    examples = list(generated.generate_pathfinder(1, PINNED_SIZES, 1))
    assert [label for *_, label in examples] == [1, 0, 0, 0, 1]
    found = hashlib.sha256(b"".join(lines.tobytes() for _, lines, _ in examples)).hexdigest()
    assert found == "e4131171668c07d8ecc10c204d7c22ede566738952c80688bf9fb1dd984926fe"
