"""State of a causal language model that reads a long text segment by segment."""

from typing import Any, Dict, Optional

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.modules.state import DecoderState, LayerState, LunaCausalState


class Stream:
    """State of a causal language model after the text that it has read.

    The size of the state does not depend on the length of the text (section 3.3 of the paper).
    ``model(tokens, stream=stream)`` reads the next segment of the text and updates the state. Gradients do
    not flow from one segment into an earlier segment. The projection of the packed sequence P is not part of
    the state, because training changes its weights.

    Attributes:
        state: state of the decoder without the projected P; None at the beginning of a text.

    Example::

        stream = Stream()
        for segment in tokens.split(512, dim=1):  # tokens [B, T] of a :class:`LunaLanguageModel`
            logits, _ = model(segment, stream=stream)
    """

    def __init__(self) -> None:
        self.state: Optional[DecoderState] = None

    @property
    def position(self) -> int:
        """Number of tokens that each text of the batch has so far."""
        return 0 if self.state is None else self.state.position

    def clear(self) -> None:
        """Reset the state, so that the next segment starts a new text."""
        self.state = None

    def store(self, state: DecoderState) -> None:
        """Store a state without its gradients and without the projected packed sequence P."""
        self.state = _without_packed(state).detach()

    def read(self, decoder: Any, tokens: Tensor, keep_after: Optional[int] = None) -> Any:
        """Read the next segment of the text, and update the state.

        Segments may overlap. The next segment then starts after the first ``keep_after`` tokens of this
        segment, and the stored state is the state at that point.

        Args:
            decoder: :class:`luna_fairseq.models.fairseq_decoder.FairseqLunaDecoder` without an encoder.
            tokens: tokens [B, T] of the segment, shifted right.
            keep_after: number of tokens after which the state is stored (default: None, after all tokens; 0
                leaves the state unchanged).

        Returns:
            Logits [B, T, V], and the dictionary of the decoder's forward.

        Raises:
            InputError: The state belongs to another model, or to a batch of another size.
        """
        self.check(len(decoder.layers), tokens.size(0))
        T = tokens.size(1)
        end = T if keep_after is None else keep_after
        if not 0 < end < T:
            output, state = decoder.read_segment(tokens, self.state)
            if end:
                self.store(state)
            return output
        (first, _), state = decoder.read_segment(tokens[:, :end], self.state)
        self.store(state)
        # The second part continues with gradients; only the stored state is detached.
        (second, extra), _ = decoder.read_segment(tokens[:, end:], _without_packed(state))
        return torch.cat([first, second], dim=1), extra

    def check(self, layers: int, batch_size: int) -> None:
        """Check that the state fits a model and a batch.

        Args:
            layers: number of layers of the model.
            batch_size: number of texts in the batch.

        Raises:
            InputError: One of the two numbers differs from that of the state.
        """
        if self.state is None:
            return
        own_layers, own_batch = len(self.state.layers), self.state.count.size(0)
        if (own_layers, own_batch) != (layers, batch_size):
            raise InputError(
                f"the stream has the state of {own_layers} layers and batch size {own_batch}, got a "
                f"model with {layers} layers and batch size {batch_size}: start a new Stream()"
            )

    def repeated(self, hypotheses: int) -> Optional[DecoderState]:
        """Return copies of the state of a single text, one for each hypothesis that continues the text.

        Args:
            hypotheses: number of hypotheses.

        Returns:
            The state for a batch of ``hypotheses`` texts; None at the beginning of a text.

        Raises:
            InputError: The stream has several texts.
        """
        if self.state is None:
            return None
        self.check(len(self.state.layers), 1)
        return self.state.map(lambda x: x.repeat_interleave(hypotheses, dim=0))

    def state_dict(self) -> Dict[str, Any]:
        """Return the contents for a checkpoint: the tensors of every layer on the CPU, and the position."""
        layers = () if self.state is None else self.state.to(torch.device("cpu")).layers
        return {"layers": [list(layer.causal[1:]) for layer in layers], "position": self.position}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore the contents returned by :meth:`state_dict`."""
        layers = tuple(LayerState(LunaCausalState(None, *sums)) for sums in state["layers"])
        self.state = DecoderState(layers, layers[0].causal.steps, state["position"]) if layers else None


def _without_packed(state: DecoderState) -> DecoderState:
    """Return the state without the projected packed sequence P, so that the next call projects P again."""
    layers = (layer._replace(causal=layer.causal._replace(pack_q=None)) for layer in state.layers)
    return state._replace(layers=tuple(layers))
