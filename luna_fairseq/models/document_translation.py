"""Translation of whole documents by a model that was trained on pieces of documents."""

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
        hub: interface returned by ``LunaModel.from_pretrained``.
        sentences: sentences of one document as plain text.
        tokens: largest number of tokens of a piece, as in training (``luna-prepare-bitext --documents``).
        beam: beam size (default: 5).
        kwargs: options of generation, such as ``lenpen``.

    Returns:
        Translations of the sentences.

    Raises:
        InputError: The dictionary has no sentence separator; ``sentences`` is a single text; a sentence is
            empty or contains the separator; ``tokens`` is below 1; a piece is longer than the model's
            positions.

    Example::

        hub = LunaModel.from_pretrained("checkpoints", "checkpoint_best.pt", "../data-bin")
        hub.translate_document(["Es regnet.", "Wir bleiben zu Hause."], tokens=128)
    """
    check_separator(hub.src_dict, hub.tgt_dict)
    if isinstance(sentences, str):
        raise InputError("expected a list of sentences, got a single text: pass [sentence, sentence, ...]")
    if tokens < 1:
        raise InputError(f"tokens must be 1 or more, got {tokens}: use the value that --documents had")
    sentences = list(sentences)
    for number, sentence in enumerate(sentences, 1):
        if not sentence.strip() or SEPARATOR in sentence:
            raise InputError(
                f"sentence {number} is empty or contains the sentence separator {SEPARATOR}: remove the "
                "sentence or the separator"
            )
    encoded = [hub.apply_bpe(hub.tokenize(sentence)) for sentence in sentences]
    lengths = ((len(line.split()),) for line in encoded)
    pieces = list(cut_documents([len(encoded)], lengths, tokens))
    groups = group_lines(encoded, pieces)
    longest = max((len(line.split()) + 1 for line in map(join, groups)), default=0)
    if longest > hub.max_positions[0]:
        raise InputError(
            f"a piece has {longest:,} tokens with its end token, the model reads {hub.max_positions[0]:,}: "
            "pass a smaller number of tokens, or split the sentence"
        )

    def translate(lines: Sequence[str]) -> List[str]:
        results = hub.generate([hub.binarize(line) for line in lines], beam=beam, **kwargs)
        # Subwords are merged before the text is split at separators, as in luna-evaluate, because a separator
        # may follow the first part of a word.
        return [hub.remove_bpe(hub.string(hypotheses[0]["tokens"])) for hypotheses in results]

    translated = [
        split(line, piece.sentences) for line, piece in zip(translate(list(map(join, groups))), pieces)
    ]
    # Pieces with a wrong number of sentences are translated again, sentence by sentence.
    failed = [line for group, result in zip(groups, translated) if result is None for line in group]
    single = iter(map(remove_separators, translate(failed) if failed else []))
    return [
        hub.detokenize(line)
        for group, result in zip(groups, translated)
        for line in (result or [next(single) for _ in group])
    ]


def check_separator(*dictionaries: Any) -> None:
    """Check that dictionaries contain the sentence separator.

    Args:
        dictionaries: fairseq dictionaries.

    Raises:
        InputError: A dictionary has no separator.
    """
    for dictionary in dictionaries:
        if SEPARATOR not in dictionary:
            raise InputError(
                f"the dictionary has no {SEPARATOR}, so the model reads single sentences: prepare its "
                "data with --documents"
            )


def group_lines(lines: Sequence[str], pieces: Sequence[Piece]) -> List[List[str]]:
    """Divide the lines of a document among its pieces.

    Args:
        lines: one line for each sentence.
        pieces: pieces of the document, whose numbers of sentences add up to the number of lines.

    Returns:
        The lines of each piece.
    """
    remaining = iter(lines)
    return [[next(remaining) for _ in range(piece.sentences)] for piece in pieces]
