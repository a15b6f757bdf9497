"""What layers know of the sentences of a batch besides their vectors."""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Optional, Union

from torch import Tensor

from luna_fairseq.errors import InputError

# fairseq's store for decoding step by step.
IncrementalState = Dict[str, Dict[str, Optional[Tensor]]]


@dataclass
class Sentences:
    """One object that goes through the layers beside X and P. It holds nothing that has a gradient.

    Attributes:
        padding_mask: [B, S], True at padding of the context, which is what is packed; None where there is
            none
        packed_padding_mask: [B, L], True at rows of P that are left out; None where none is
        source_tokens: [B, S], of a decoder's source; None without one
        target_padding_mask: [B, T], True at padding of what a decoder reads; None where there is none
        incremental_state: fairseq's store, while a sentence is decoded step by step
        shared: what is the same for all layers, by name; see :meth:`once`
    """

    padding_mask: Optional[Tensor] = None
    packed_padding_mask: Optional[Tensor] = None
    source_tokens: Optional[Tensor] = None
    target_padding_mask: Optional[Tensor] = None
    incremental_state: Any = None
    shared: Dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, padding_mask: "Masks", packed_padding_mask: Optional[Tensor] = None) -> "Sentences":
        """Return the description of the batch that an attention is called with.

        Args:
            padding_mask: padding mask of the context [B, S], or the whole description
            packed_padding_mask: [B, L], True at masked rows of P; belongs to a mask of the context alone

        Raises:
            InputError: both a description, which has a mask of its own for P, and ``packed_padding_mask``
        """
        if isinstance(padding_mask, Sentences):
            if packed_padding_mask is not None:
                raise InputError(
                    "packed_padding_mask was given beside Sentences, which have a mask for P themselves: "
                    "set Sentences.packed_padding_mask instead"
                )
            return padding_mask
        return cls(padding_mask, packed_padding_mask)

    def once(self, name: str, find: Callable[[], Any]) -> Any:
        """What ``find`` returns, which is called by whoever asks for ``name`` first."""
        if name not in self.shared:
            self.shared[name] = find()
        return self.shared[name]


# What attention takes as the context's mask: the mask alone, or all that layers know.
Masks = Union[None, Tensor, Sentences]
