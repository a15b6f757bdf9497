"""State of a causal language model that reads a text segment by segment."""

from typing import Any, Dict, Optional

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.modules.state import DecoderState, LayerState, LunaCausalState


class Stream:
    """The state after the text so far: constant in size, however long that is (Luna, section 3.3).

    ``model(tokens, stream=stream)`` goes on from the state, and leaves it at the end of ``tokens``. Gradients
    do not flow from one call into the one before. Every call projects P again, because training changes it.

    Attributes:
        state: state of the decoder without the projected P; None at the beginning of a text
    """

    def __init__(self) -> None:
        self.state: Optional[DecoderState] = None

    @property
    def position(self) -> int:
        """Number of tokens of each row so far."""
        return 0 if self.state is None else self.state.position

    def clear(self) -> None:
        """Reset the state, so that a new text starts."""
        self.state = None

    def keep(self, state: DecoderState) -> None:
        """Remember the state that the decoder has returned, without its history and without P."""
        self.state = _without_packed(state).detach()

    def read(self, decoder: Any, tokens: Tensor, keep_after: Optional[int] = None) -> Any:
        """Read the next tokens.

        Args:
            decoder: :class:`luna_fairseq.models.fairseq_decoder.FairseqLunaDecoder` without an encoder
            tokens: [B, T], the text shifted right
            keep_after: number of tokens after which the state is kept (default: None, all of them)

        Returns:
            what ``decoder`` returns for the tokens: logits [B, T, V] and fairseq's dictionary

        Raises:
            InputError: the state is the state of another model, or of a batch of another size
        """
        self.check(len(decoder.layers), tokens.size(0))
        T = tokens.size(1)
        kept = T if keep_after is None else keep_after
        if not 0 < kept < T:
            output, state = decoder.read_segment(tokens, self.state)
            if kept:
                self.keep(state)
            return output
        (first, _), state = decoder.read_segment(tokens[:, :kept], self.state)
        self.keep(state)
        (second, extra), _ = decoder.read_segment(tokens[:, kept:], _without_packed(state))
        return torch.cat([first, second], dim=1), extra

    def check(self, layers: int, rows: int) -> None:
        """Raise InputError unless the state fits a model of so many layers and a batch of so many rows."""
        if self.state is None:
            return
        kept = self.state.count.size(0)
        if len(self.state.layers) != layers or kept != rows:
            raise InputError(
                f"the state that is carried on is of {len(self.state.layers)} layers and {kept} rows, "
                f"the model has {layers} layers and the batch {rows} rows: begin with a new Stream()"
            )

    def for_rows(self, rows: int) -> Optional[DecoderState]:
        """Return the state of a text of one row for so many continuations of it."""
        if self.state is None:
            return None
        self.check(len(self.state.layers), 1)
        return self.state.map(lambda x: x.repeat_interleave(rows, dim=0))

    def state_dict(self) -> Dict[str, Any]:
        """Return the contents for a checkpoint: of each layer its tensors, on the CPU, and the position."""
        layers = () if self.state is None else self.state.to(torch.device("cpu")).layers
        return {"layers": [list(layer.causal[1:]) for layer in layers], "position": self.position}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` has returned."""
        layers = tuple(LayerState(LunaCausalState(None, *sums)) for sums in state["layers"])
        self.state = DecoderState(layers, layers[0].causal.steps, state["position"]) if layers else None


def _without_packed(state: DecoderState) -> DecoderState:
    layers = (layer._replace(causal=layer.causal._replace(pack_q=None)) for layer in state.layers)
    return state._replace(layers=tuple(layers))
