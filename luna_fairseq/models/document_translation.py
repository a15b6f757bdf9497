"""Translation of whole documents, which are split into passages of several sentences that fit the model."""

from typing import Any, Iterable, List, Sequence

from luna_fairseq.errors import InputError
from luna_fairseq.text.documents import (
    SEPARATOR,
    DocumentPiece,
    cut_documents,
    join_sentences,
    remove_separators,
    split_sentences,
)


def translate_document(
    hub: Any, sentences: Iterable[str], tokens: int, beam: int = 5, **kwargs: Any
) -> List[str]:
    """Translate a document, and return one translation per sentence.

    The document is split into passages of several sentences. Each passage is translated as a whole. If the
    translation has a different number of sentences, the passage is translated again, sentence by sentence.

    Args:
        hub: interface returned by ``LunaModel.from_pretrained``.
        sentences: sentences of one document, as plain text.
        tokens: maximum number of tokens per passage, as in ``luna-prepare-bitext --documents``.
        beam: beam size.
        kwargs: generation options, such as ``lenpen``.

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
    longest = max((len(line.split()) + 1 for line in map(join_sentences, groups)), default=0)
    if longest > hub.max_positions[0]:
        raise InputError(
            f"a piece has {longest:,} tokens with its end token, the model reads {hub.max_positions[0]:,}: "
            "pass a smaller number of tokens, or split the sentence"
        )

    def translate(lines: Sequence[str]) -> List[str]:
        results = hub.generate([hub.binarize(line) for line in lines], beam=beam, **kwargs)
        # As in luna-evaluate, subwords are merged before splitting the text at separators, because a
        # separator may follow the first part of a word.
        return [hub.remove_bpe(hub.string(hypotheses[0]["tokens"])) for hypotheses in results]

    translated = [
        split_sentences(line, piece.sentences)
        for line, piece in zip(translate(list(map(join_sentences, groups))), pieces)
    ]
    # Pieces with the wrong number of sentences are translated again, sentence by sentence.
    failed = [line for group, result in zip(groups, translated) if result is None for line in group]
    single = iter(map(remove_separators, translate(failed) if failed else []))
    lines: List[str] = []
    for group, result in zip(groups, translated):
        lines += [next(single) for _ in group] if result is None else result
    return [hub.detokenize(line) for line in lines]


def check_separator(*dictionaries: Any) -> None:
    """Raise InputError if a dictionary lacks the symbol that separates the sentences of a document."""
    for dictionary in dictionaries:
        if SEPARATOR not in dictionary:
            raise InputError(
                f"the dictionary has no {SEPARATOR}, so the model reads single sentences: prepare its "
                "data with --documents"
            )


def group_lines(lines: Sequence[str], pieces: Sequence[DocumentPiece]) -> List[List[str]]:
    """Group lines into one list per document piece: ``[["a", "b"], ["c"]]`` for pieces of 2 and 1 lines."""
    remaining = iter(lines)
    return [[next(remaining) for _ in range(piece.sentences)] for piece in pieces]
