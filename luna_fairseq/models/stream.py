"""What a causal language model remembers of a text that it reads segment by segment."""

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.modules import LunaCausalState


class Stream:
    """The state after the text so far: constant in size, however long that is (Luna, section 3.3).

    ``model(tokens, stream=stream)`` goes on from it, and leaves it at the end of ``tokens``. Gradients do not
    go from one call into the one before. P is projected anew by every call.

    Attributes:
        layers: of each layer the sums of its causal attention, without P; empty at the beginning of a text
        position: tokens of each row so far
    """

    def __init__(self) -> None:
        self.layers: List[LunaCausalState] = []
        self.position = 0

    def clear(self) -> None:
        """Forget everything: a text begins."""
        self.layers, self.position = [], 0

    def keep(self, layers: List[LunaCausalState], tokens: int) -> None:
        """Remember what each layer has summed up after ``tokens`` more."""
        self.layers = [LunaCausalState(None, *_detached(state)) for state in layers]
        self.position += tokens

    def read(self, decoder: Any, tokens: Tensor, keep_after: Optional[int] = None) -> Any:
        """What ``decoder`` gives for the tokens [B, T] that follow; the state after ``keep_after`` of them
        (default: all) is kept."""
        self.check(len(decoder.layers), tokens.size(0))
        T, before = tokens.size(1), self.position
        kept = T if keep_after is None else keep_after
        if not 0 < kept < T:
            output, layers = decoder.read(tokens, self.layers, before)
            if kept:
                self.keep(layers, T)
            return output
        (first, _), layers = decoder.read(tokens[:, :kept], self.layers, before)
        self.keep(layers, kept)
        (second, extra), _ = decoder.read(tokens[:, kept:], layers, before + kept)
        return torch.cat([first, second], dim=1), extra

    def check(self, layers: int, rows: int) -> None:
        """Raise InputError where this is the state of another model, or of a batch of other rows."""
        if not self.layers:
            return
        kept = self.layers[0].steps.size(0)
        if len(self.layers) != layers or kept != rows:
            raise InputError(
                f"the state that is carried on is of {len(self.layers)} layers and {kept} rows, the model "
                f"has {layers} layers and the batch {rows} rows: begin with a new Stream()"
            )

    def for_rows(self, rows: int) -> Tuple[List[LunaCausalState], int]:
        """The state of a text of one row, for so many continuations of it, and the position."""
        self.check(len(self.layers), 1)
        layers = [
            LunaCausalState(
                None, *(None if x is None else x.repeat_interleave(rows, dim=0) for x in state[1:])
            )
            for state in self.layers
        ]
        return layers, self.position

    def state_dict(self) -> Dict[str, Any]:
        """For a checkpoint: tensors on the CPU, and the position."""
        layers = [[None if x is None else x.cpu() for x in state[1:]] for state in self.layers]
        return {"layers": layers, "position": self.position}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Take what :meth:`state_dict` gave."""
        self.layers = [LunaCausalState(None, *sums) for sums in state["layers"]]
        self.position = state["position"]


def _detached(state: LunaCausalState) -> List[Optional[Tensor]]:
    return [None if x is None else x.detach() for x in state[1:]]
