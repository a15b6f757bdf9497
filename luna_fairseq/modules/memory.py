"""Memory of a packed context: what attention to a source reads at every decoding step."""

from typing import Any, Callable, NamedTuple, Optional, Tuple, TypeVar

from torch import Tensor

Part = TypeVar("Part", bound=Tuple[Any, ...])


def map_tensors(change: Callable[[Tensor], Tensor], part: Part) -> Part:
    """Return the named tuple ``part`` with ``change`` applied to its tensors. None stays None, a tuple in it
    is changed in turn, and a tensor that has two names is changed once."""
    changed = {id(x): change(x) for x in part if isinstance(x, Tensor)}

    def of(x: Any) -> Any:
        if isinstance(x, Tensor):
            return changed[id(x)]
        if isinstance(x, tuple):
            return map_tensors(change, x)
        return x

    parts = [of(x) for x in part]
    return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)


class PackedMemory(NamedTuple):
    """A packed context, ready to be read by unpack attention at every decoding step.

    Attributes:
        key, value: [B, H, L, K], projected from the packed context Y_P; one tensor if they are tied
        pack_weights: [B, L, S], mean over the pack heads; None if the weights were not asked for
    """

    key: Tensor
    value: Tensor
    pack_weights: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "PackedMemory":
        """Return the memory of ``sentences`` [B'], in their order."""
        return map_tensors(lambda x: x.index_select(0, sentences), self)
