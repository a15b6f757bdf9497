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
        key: keys [B, H, L, K] projected from the packed context Y_P.
        value: values [B, H, L, K] projected from Y_P, the same tensor as ``key`` if both are tied.
        pack_weights: mean [B, L, S] of the pack weights over heads (default: None, weights were not
            requested).
    """

    key: Tensor
    value: Tensor
    pack_weights: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "PackedMemory":
        """Return the memory of some sentences, in the given order.

        Args:
            sentences: indices [R] of the R sentences to return.
        """
        return map_tensors(lambda x: x.index_select(0, sentences), self)


class AbsorbedMemory(NamedTuple):
    """Packed context that has absorbed the projections of the queries and of the output.

    For a head with key k and value v of a row, ``(W_q x + b_q) . k`` equals ``x . (W_q^T k) + b_q . k``, and
    ``W_o (a v)`` equals ``a (W_o v)``. Both products with the row are computed once for a sentence. A
    decoding step then needs two products with H L columns in place of two projections with C columns and the
    products of each head.

    Attributes:
        key: keys after the transposed projection of the queries, scaled by K^-0.5 [B, C, H L].
        key_bias: products of the scaled keys with the bias of the queries, and the smallest number at rows of
            the packed sequence P that are padding [B, 1, H L].
        value: values after the output projection, and 0 at rows of P that are padding [B, H L, C].
        value_bias: bias [B, 1, C] of the output projection.
        pack_weights: None, because a memory with weights is not absorbed (default: None).
    """

    key: Tensor
    key_bias: Tensor
    value: Tensor
    value_bias: Tensor
    pack_weights: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "AbsorbedMemory":
        """Return the memory of some sentences, in the given order.

        Args:
            sentences: indices [R] of the R sentences to return.
        """
        return map_tensors(lambda x: x.index_select(0, sentences), self)
