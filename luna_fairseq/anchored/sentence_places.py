"""Places within the sentences of a document, which have separators between them."""

from typing import NamedTuple, Optional, Tuple

from torch import Tensor


class Begun(NamedTuple):
    """The sentence that a target has begun, after some of its tokens.

    Attributes:
        sentence: its number [B]
        beginning: the place of its first token, padding not counted [B]
    """

    sentence: Tensor
    beginning: Tensor

    def select(self, rows: Tensor) -> "Begun":
        """That of the hypotheses ``rows`` [B'], in their order."""
        return Begun(self.sentence.index_select(0, rows), self.beginning.index_select(0, rows))


def within_sentences(
    place: Tensor, begins: Tensor, before: Optional[Begun] = None
) -> Tuple[Tensor, Tensor, Begun]:
    """
    Args:
        place: of tokens in their target, from 0, padding not counted [B, T]
        begins: [B, T], True at separators, the first tokens of sentences in a target shifted right
        before: what the tokens before these left (default: there are none)

    Returns:
        places in their sentences [B, T], the numbers of these sentences [B, T], and what they leave
    """
    sentence, beginning = begins.cumsum(dim=1), (place * begins).cummax(dim=1).values
    if before is not None:
        sentence = sentence + before.sentence[:, None]
        beginning = beginning.maximum(before.beginning[:, None])
    return (place - beginning).clamp(min=0), sentence, Begun(sentence[:, -1], beginning[:, -1])


def sentence_numbers(separator: Tensor, padding: Tensor) -> Tensor:
    """The number of the sentence of each of a source's tokens, from 1; 0 at padding. All [B, S], True at what
    the masks are called; a separator belongs to the sentence that it ends."""
    ends = separator.long()
    return (ends.cumsum(dim=1) - ends + 1).masked_fill(padding, 0)


def origins(sentence: Tensor, number: Tensor) -> Tensor:
    """The number of the source's tokens before each ``sentence`` [B n, T], padding not counted; all of them
    for one that it does not have.

    Args:
        sentence: numbers, from 0; n hypotheses of each source follow one another
        number: of the source's tokens, as of :func:`sentence_numbers` [B, S]
    """
    B, S = number.shape
    length = number.new_zeros(B, S + 1).scatter_add_(1, number, number.clamp(max=1))
    before: Tensor = length.cumsum(dim=1)
    return before.gather(1, sentence.reshape(B, -1).clamp(max=S)).view_as(sentence)
