"""What is kept of a context that stays the same while a sentence is decoded."""

from typing import Any, NamedTuple, Optional, Tuple, TypeVar

from torch import Tensor


class KeptContext(NamedTuple):
    """What unpack attention reads of a packed context: a context that stays the same is packed once, and this
    is kept.

    Attributes:
        key, value: [B, H, L, K], projected from Y_P; one tensor where they are tied
        pack_weights: mean over the pack heads [B, L, S], or None where weights are not wanted
        token_key, token_value: with a look-up, the tokens of each part [B, H, L, W, K]; where they are read
            as they stand, and with local parts, [B, H, S, K]
        empty, position, part: with a look-up, see :class:`luna_fairseq.ops.luna.Layout`
        row_place, token_place: with a diagonal, the middle of rows [B, L] and, with a look-up, of tokens [B,
            L, W] or [B, S], in tokens
    """

    key: Tensor
    value: Tensor
    pack_weights: Optional[Tensor] = None
    token_key: Any = None
    token_value: Any = None
    empty: Any = None
    position: Optional[Tensor] = None
    part: Optional[Tensor] = None
    row_place: Any = None
    token_place: Any = None

    def select(self, sentences: Tensor) -> "KeptContext":
        """That of the ``sentences`` [B'], in their order."""
        return select_sentences(self, sentences)


Kept = TypeVar("Kept", bound=Tuple[Any, ...])


def select_sentences(kept: Kept, sentences: Tensor) -> Kept:
    """``kept``, a tuple of tensors [B, ..] or None, for the ``sentences`` [B']; what was one tensor stays
    one."""
    selected = {id(x): x.index_select(0, sentences) for x in kept if x is not None}
    parts: Any = [None if x is None else selected[id(x)] for x in kept]
    return type(kept)(*parts)
