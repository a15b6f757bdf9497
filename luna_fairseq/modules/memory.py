"""Cached keys and values of a packed context, which unpack attention reads at every decoding step."""

from typing import Any, Callable, NamedTuple, Optional, Tuple, TypeVar

from torch import Tensor

Part = TypeVar("Part", bound=Tuple[Any, ...])


def map_tensors(change: Callable[[Tensor], Tensor], part: Part) -> Part:
    """Apply a function to every tensor of a nested tuple.

    Args:
        change: function from a tensor to a tensor.
        part: tuple or named tuple that can contain tensors, tuples and other values.

    Returns:
        Tuple of the same type with the changed tensors. Other values are unchanged. If a tuple holds a tensor
        twice, the function is applied once and the result is used twice.
    """
    changed = {id(x): change(x) for x in part if isinstance(x, Tensor)}

    def apply(x: Any) -> Any:
        if isinstance(x, Tensor):
            return changed[id(x)]
        if isinstance(x, tuple):
            return map_tensors(change, x)
        return x

    parts = [apply(x) for x in part]
    return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)


class PackedMemory(NamedTuple):
    """Keys and values of a packed context, computed once and read at every decoding step.

    Attributes:
        key: keys projected from the packed context Y_P [B, H, L, K].
        value: values projected from Y_P [B, H, L, K], the same tensor as ``key`` if both are tied.
        pack_weights: mean of the pack weights over heads [B, L, S] (default: None, weights were not
            requested).
    """

    key: Tensor
    value: Tensor
    pack_weights: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "PackedMemory":
        """Return the memory of some sentences, in the given order.

        Args:
            sentences: indices of the sentences to return [B'].
        """
        return map_tensors(lambda x: x.index_select(0, sentences), self)
