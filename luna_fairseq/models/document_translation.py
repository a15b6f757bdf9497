"""Translate documents by a model that was trained on pieces of several sentences."""

from typing import Any, Iterable, List, Sequence

from luna_fairseq.errors import InputError
from luna_fairseq.text.documents import SEPARATOR, Piece, cut_documents, join, remove_separators, split


def translate_document(
    hub: Any, sentences: Iterable[str], tokens: int, beam: int = 5, **kwargs: Any
) -> List[str]:
    """Translate a document and return one line for each of its sentences.

    The document is cut into pieces as ``luna-prepare-bitext --documents`` cuts validation and test text. A
    piece whose translation has another number of sentences is translated again, sentence by sentence.

    Args:
        hub: interface returned by ``from_pretrained``
        sentences: sentences of one document, plain text
        tokens: largest number of tokens of a piece, as given to ``luna-prepare-bitext --documents``
        beam: number of hypotheses (default: 5)
        kwargs: options of generation, such as ``lenpen``

    Raises:
        InputError: the dictionary has no separator; ``sentences`` is a single text; a sentence is empty or
            holds the separator; ``tokens`` is below 1; a piece is longer than the model's positions
    """
    check_separator(hub.src_dict, hub.tgt_dict)
    if isinstance(sentences, str):
        raise InputError("a text is no list of sentences: give [sentence, sentence, ...]")
    if tokens < 1:
        raise InputError(f"tokens is {tokens}: a piece has 1 or more; give what --documents was given")
    sentences = list(sentences)
    for number, sentence in enumerate(sentences, 1):
        if not sentence.strip() or SEPARATOR in sentence:
            raise InputError(
                f"sentence {number} is empty or holds {SEPARATOR}, which stands between sentences"
            )
    encoded = [hub.apply_bpe(hub.tokenize(sentence)) for sentence in sentences]
    lengths = ((len(line.split()),) for line in encoded)
    pieces = list(cut_documents([len(encoded)], lengths, tokens))
    groups = grouped(encoded, pieces)
    longest = max((len(line.split()) + 1 for line in map(join, groups)), default=0)
    if longest > hub.max_positions[0]:
        raise InputError(
            f"a piece has {longest:,} tokens with its end, and the model reads {hub.max_positions[0]:,}: "
            "give fewer tokens, or split the sentence"
        )

    def translate(lines: Sequence[str]) -> List[str]:
        found = hub.generate([hub.binarize(line) for line in lines], beam=beam, **kwargs)
        # Words, as luna-evaluate divides them: a piece of a word may stand beside a separator.
        return [hub.remove_bpe(hub.string(hypotheses[0]["tokens"])) for hypotheses in found]

    translated = [
        split(line, piece.sentences) for line, piece in zip(translate(list(map(join, groups))), pieces)
    ]
    again = [line for group, found in zip(groups, translated) if found is None for line in group]
    singly = iter(map(remove_separators, translate(again) if again else []))
    return [
        hub.detokenize(line)
        for group, found in zip(groups, translated)
        for line in (found or [next(singly) for _ in group])
    ]


def check_separator(*dictionaries: Any) -> None:
    """Raise InputError unless the dictionaries have a separator of sentences."""
    for dictionary in dictionaries:
        if SEPARATOR not in dictionary:
            raise InputError(
                f"the dictionary has no {SEPARATOR}: the model reads single sentences; prepare its text with "
                "--documents"
            )


def grouped(lines: Sequence[str], pieces: Sequence[Piece]) -> List[List[str]]:
    """Return the lines that each piece holds."""
    rest = iter(lines)
    return [[next(rest) for _ in range(piece.sentences)] for piece in pieces]
