"""What attention to a source keeps while a sentence is decoded."""

from typing import Any, NamedTuple, Optional, Tuple, TypeVar

from torch import Tensor


class CrossAttentionCache(NamedTuple):
    """What unpack attention reads of a context that stays the same while a sentence is decoded.

    Attributes:
        key, value: [B, H, L, K], projected from Y_P; one tensor where they are tied
        pack_weights: mean over the pack heads [B, L, S], or None where weights are not wanted
    """

    key: Tensor
    value: Tensor
    pack_weights: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "CrossAttentionCache":
        """That of the ``sentences`` [B'], in their order."""
        return select_sentences(self, sentences)


Cache = TypeVar("Cache", bound=Tuple[Any, ...])


def select_sentences(cache: Cache, sentences: Tensor) -> Cache:
    """``cache``, a tuple of tensors [B, ..] or None, for the ``sentences`` [B']; what was one tensor stays
    one."""
    selected = {id(x): x.index_select(0, sentences) for x in cache if x is not None}
    parts: Any = [None if x is None else selected[id(x)] for x in cache]
    return type(cache)(*parts)
