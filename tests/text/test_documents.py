"""Documents are cut between sentences, and no sentence is lost when the pieces are joined again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luna_fairseq.errors import InputError
from luna_fairseq.text.bitext import check_bitext
from luna_fairseq.text.documents import (
    SEPARATOR,
    cut_documents,
    document_lengths,
    join_sentences,
    split_sentences,
)

lengths = st.lists(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=9), max_size=5
)


@given(lengths, st.integers(1, 30))
def test_pieces_have_all_sentences_and_keep_to_the_limit(documents, limit):
    sentences = [sentence for document in documents for sentence in document]
    pieces = list(cut_documents([len(document) for document in documents], iter(sentences), limit))
    for number, document in enumerate(documents):
        assert sum(p.sentences for p in pieces if p.document == number) == len(document)
    start, previous = 0, None
    for piece in pieces:
        held = sentences[start : start + piece.sentences]
        size = [sum(side) + len(held) - 1 for side in zip(*held)]
        assert max(size) <= limit or len(held) == 1
        if previous is not None and previous[0].document == piece.document:  # pieces are as long as possible
            assert max(a + 1 + b for a, b in zip(previous[1], held[0])) > limit
        start, previous = start + piece.sentences, (piece, size)


@given(st.lists(st.text("ab ", min_size=1).filter(str.strip), min_size=1))
def test_a_joined_piece_is_split_into_its_sentences(sentences):
    plain = [" ".join(sentence.split()) for sentence in sentences]
    assert split_sentences(join_sentences(plain), len(plain)) == plain
    assert split_sentences(join_sentences(plain), len(plain) + 1) is None
    assert split_sentences(f"{join_sentences(plain)} {SEPARATOR} ", len(plain) + 1) is None


def lengths_of_files(folder, source, target, ids=None):
    """Write a parallel text, and return the number of sentences of each document."""
    for name, lines in (("en", source), ("de", target), ("doc", ids)):
        if lines is not None:
            (folder / f"t.{name}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    prefix = str(folder / "t")
    return document_lengths(prefix, check_bitext(prefix, "en", "de", drop_empty=True, documents=ids is None))


def test_borders_are_empty_lines_or_ids(tmp_path):
    assert lengths_of_files(tmp_path, ["a", "b", "", "c", ""], ["A", "B", "", "C", ""]) == [2, 1]
    assert lengths_of_files(tmp_path, ["a", "b", "c"], ["A", "B", "C"], ["one", "two", "two"]) == [1, 2]


@pytest.mark.parametrize(
    "source, target, ids, message",
    [
        (["a", "", "c"], ["A", "B", "C"], None, "t.en, line 2 is empty .* in document 1 the sides differ"),
        (
            ["a", "", "c"],
            ["A", ""],
            None,
            "t.de, line 3 is empty or missing, .* in document 2 the sides differ",
        ),
        (["a", "", "", "c"], ["A", "", "", "C"], None, "t.en, line 3: document 2 is empty"),
        (["a", "b"], ["A", f"x {SEPARATOR} y"], None, "t.de, line 2 contains <sep>"),
        (["a", "b"], ["A", "B"], ["1"], "t.doc has 1 lines, .*t.en has 2"),
        (["a", ""], ["A", ""], ["1", "1"], "t.en, line 2 is empty: with .*t.doc, every line must be"),
    ],
)
def test_invalid_documents_are_refused(tmp_path, source, target, ids, message):
    with pytest.raises(InputError, match=message):
        lengths_of_files(tmp_path, source, target, ids)
