"""Compare the positions of target tokens, counted by sentences, with a plain count."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_luna import PAD, batch

from luna_fairseq.anchored.target_places import target_places

SOURCE_SEPARATOR, SEPARATOR = 4, 5
tokens = st.lists(st.integers(3, 6), min_size=1, max_size=12)


@settings(deadline=None, max_examples=100)
@given(pairs=st.lists(st.tuples(tokens, tokens, tokens), min_size=1, max_size=3), left=st.booleans())
def test_positions_restart_at_the_source_sentence(pairs, left):
    source = batch([source for source, *_ in pairs], left=not left)
    target = batch([target for _, *hypotheses in pairs for target in hypotheses], left=left)
    place, origin = target_places(target, source, PAD, (SOURCE_SEPARATOR, SEPARATOR))
    expected = []
    for source, *hypotheses in pairs:
        begins = [0, *(i + 1 for i, token in enumerate(source) if token == SOURCE_SEPARATOR)]
        for target in hypotheses:
            number, found, expected_of_target = 0, 0, []
            for i, token in enumerate(target):
                if token == SEPARATOR:
                    number, found = number + 1, i
                begin = begins[number] if number < len(begins) else len(source)
                expected_of_target.append((i - found, begin))
            expected.append(expected_of_target)
    real = batch([target for _, *hypotheses in pairs for target in hypotheses], left=left).ne(PAD)
    for row in range(len(expected)):
        assert list(zip(place[row][real[row]].tolist(), origin[row][real[row]].tolist())) == expected[row]


@given(pairs=st.lists(st.tuples(tokens, tokens), min_size=1, max_size=3))
def test_positions_without_separators_are_plain_counts(pairs):
    source, target = (batch(rows) for rows in zip(*pairs))
    place, origin = target_places(target, source, PAD, (7, 7))
    plain, nowhere = target_places(target, source, PAD)
    assert nowhere is None and torch.equal(place[target.ne(PAD)], plain[target.ne(PAD)])
    assert not origin.any()
