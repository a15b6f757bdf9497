"""Translation of a document by a model that was trained on pieces of several sentences."""

from typing import Any, Iterable, List, Sequence

from luna_fairseq.errors import InputError
from luna_fairseq.text.documents import SEPARATOR, Piece, cut, join, split


def translate_document(
    hub: Any, sentences: Iterable[str], tokens: int, beam: int = 5, **kwargs: Any
) -> List[str]:
    """One line for each sentence of a document. A piece whose translation has another number of sentences is
    translated again, sentence by sentence.

    Args:
        hub: what ``from_pretrained`` returned
        sentences: of one document, plain text
        tokens: of a piece at most, as ``luna-prepare-bitext --documents`` was given
        beam: hypotheses (default: 5)
        kwargs: options of generation, as ``lenpen``

    Raises:
        InputError: no separator in the dictionary, a text in the place of sentences, an empty one, or one
            that holds the separator; a piece that is longer than the model's positions
    """
    check_separator(hub.src_dict, hub.tgt_dict)
    if isinstance(sentences, str):
        raise InputError("a text is no list of sentences: give [sentence, sentence, ...]")
    sentences = list(sentences)
    for number, sentence in enumerate(sentences, 1):
        if not sentence.strip() or SEPARATOR in sentence:
            raise InputError(
                f"sentence {number} is empty or holds {SEPARATOR}, which stands between sentences"
            )
    encoded = [hub.apply_bpe(hub.tokenize(sentence)) for sentence in sentences]
    lengths = ((len(line.split()),) for line in encoded)
    pieces = list(cut([len(encoded)], lengths, tokens))
    groups = grouped(encoded, pieces)
    longest = max((len(line.split()) + 1 for line in map(join, groups)), default=0)
    if longest > hub.max_positions[0]:
        raise InputError(
            f"a piece has {longest:,} tokens with its end, and the model reads {hub.max_positions[0]:,}: "
            "give fewer tokens, or split the sentence"
        )
    # As long as fairseq allows: a piece has as many tokens as its sentences together.
    length = {"max_len_a": 1.5, "max_len_b": 20}

    def translate(lines: Sequence[str]) -> List[str]:
        found = hub.generate([hub.binarize(line) for line in lines], beam=beam, **{**length, **kwargs})
        return [hub.string(hypotheses[0]["tokens"]) for hypotheses in found]

    translated = [
        split(line, piece.sentences) for line, piece in zip(translate(list(map(join, groups))), pieces)
    ]
    again = [line for group, found in zip(groups, translated) if found is None for line in group]
    singly = iter(translate(again) if again else [])
    lines = [
        line.replace(SEPARATOR, " ")
        for group, found in zip(groups, translated)
        for line in (found or [next(singly) for _ in group])
    ]
    return [hub.detokenize(hub.remove_bpe(line)) for line in lines]


def check_separator(*dictionaries: Any) -> None:
    """Raise InputError unless the dictionaries have a separator of sentences."""
    for dictionary in dictionaries:
        if SEPARATOR not in dictionary:
            raise InputError(
                f"the dictionary has no {SEPARATOR}: the model reads single sentences; prepare its text with "
                "--documents"
            )


def grouped(lines: Sequence[str], pieces: Sequence[Piece]) -> List[List[str]]:
    """The sentences of each piece."""
    rest = iter(lines)
    return [[next(rest) for _ in range(piece.sentences)] for piece in pieces]
