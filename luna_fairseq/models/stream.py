"""What a causal language model remembers of a text that it reads segment by segment, and the decoder that
reads it so."""

import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.errors import InputError
from luna_fairseq.modules import LunaCausalState
from luna_fairseq.modules.sentences import IncrementalState


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
        self.layers = [_without_p(state, Tensor.detach) for state in layers]
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
        layers = [_without_p(state, lambda x: x.repeat_interleave(rows, dim=0)) for state in self.layers]
        return layers, self.position

    def state_dict(self) -> Dict[str, Any]:
        """For a checkpoint: tensors on the CPU, and the position."""
        layers = [list(_without_p(state, Tensor.cpu)[1:]) for state in self.layers]
        return {"layers": layers, "position": self.position}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Take what :meth:`state_dict` gave."""
        self.layers = [LunaCausalState(None, *sums) for sums in state["layers"]]
        self.position = state["position"]


def _without_p(state: LunaCausalState, change: Callable[[Tensor], Tensor]) -> LunaCausalState:
    return LunaCausalState(None, *(None if x is None else change(x) for x in state[1:]))


class ReadsSegments:
    """What a decoder without encoder needs besides to read a text segment by segment, or to go on from one.

    Attributes:
        begin_from: where decoding begins in the middle of a text: of a number of rows, what
            :meth:`go_on_from` takes; None at the beginning of one
    """

    begin_from: Optional[Callable[[int], Tuple[Sequence[Any], int]]] = None

    def read(self: Any, tokens: Tensor, layers: Sequence[Any], before: int) -> Tuple[Any, List[Any]]:
        """A segment of a text, all of whose tokens are new.

        Args:
            tokens: shifted right [B, T], without padding
            layers: what each layer has summed up of the text before; none at its beginning
            before: tokens of that text

        Returns:
            what ``forward`` returns, and the sums of each layer after the segment
        """
        store: IncrementalState = {}
        self.go_on_from(store, layers, before, segment=True)
        output = self(tokens, incremental_state=store)
        return output, [layer.stored(store, "causal_sums", LunaCausalState) for layer in self.layers]

    def go_on_from(
        self: Any, store: IncrementalState, layers: Sequence[Any], before: int, segment: bool = False
    ) -> None:
        """Begin decoding, or a ``segment`` all of whose tokens are new, after a text of ``before`` tokens;
        what a checkpoint held is on the CPU."""
        device = next(self.parameters()).device
        for layer, state in zip(self.layers, layers):
            here = _without_p(state, lambda x: x.to(device))
            layer.set_incremental_state(store, "causal_sums", here._asdict())
        self.set_incremental_state(store, "begun", {"tokens": before, "segment": segment})

    def begin_decoding(
        self: Any, incremental_state: IncrementalState, tokens: Tensor, context: Optional[Tensor]
    ) -> None:
        """The decoder's own, from :attr:`begin_from` on."""
        if not incremental_state and self.begin_from is not None:
            self.go_on_from(incremental_state, *self.begin_from(tokens.size(0)))
        super().begin_decoding(incremental_state, tokens, context)  # type: ignore[misc]

    def new_tokens(
        self: Any, prev_output_tokens: Tensor, incremental_state: Optional[IncrementalState]
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """The decoder's own; after a text that was read before, with the positions that follow it."""
        begun = self.get_incremental_state(incremental_state, "begun") if incremental_state else None
        if begun is None:
            return super().new_tokens(prev_output_tokens, incremental_state)  # type: ignore[misc]
        end = begun["tokens"] + prev_output_tokens.size(1)
        new = prev_output_tokens if begun["segment"] else prev_output_tokens[:, -1:]
        return new, None if self.embed_positions is None else self._positions(end - new.size(1), end)

    def _positions(self: Any, start: int, end: int) -> Tensor:
        """Of the tokens from ``start`` to ``end``, none of which is padding: [1, T, C]."""
        table, first = self.embed_positions, self.padding_idx + 1 + start
        if isinstance(table, torch.nn.Embedding):
            self._check_positions(end)
            return table.weight[first : first + end - start].unsqueeze(0)
        return sinusoids(first, end - start, table.embedding_dim).to(next(self.parameters())).unsqueeze(0)


def sinusoids(first: int, number: int, embed_dim: int) -> Tensor:
    """Rows ``first`` to ``first + number`` of fairseq's endless table of sinusoidal positions [number, C]."""
    half = embed_dim // 2
    frequencies = torch.exp(torch.arange(half, dtype=torch.float64) * -(math.log(10000) / (half - 1)))
    angles = torch.arange(first, first + number, dtype=torch.float64)[:, None] * frequencies
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, embed_dim % 2))
