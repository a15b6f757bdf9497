"""State of a causal language model that processes a long text in segments."""

from typing import Any, Dict, Optional

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.modules.memory import DecoderState, LunaCausalState


class Stream:
    """State of a causal language model after the text processed so far.

    ``model(tokens, stream=stream)`` processes the next segment and updates the state, whose size does not
    grow with the text (section 3.3 of the paper). Gradients do not flow into earlier segments.

    Example::

        stream = Stream()
        for segment in tokens.split(512, dim=1):  # tokens [batch size, length]
            logits, _ = model(segment, stream=stream)  # model: a LunaLanguageModel
    """

    def __init__(self) -> None:
        self.state: Optional[DecoderState] = None

    @property
    def position(self) -> int:
        """Number of positions processed so far in each text of the batch, including padding."""
        return 0 if self.state is None else self.state.position

    def clear(self) -> None:
        """Reset the state, so that the next segment begins a new text."""
        self.state = None

    def store(self, state: DecoderState) -> None:
        """Store the decoder state after a segment, detached from the autograd graph."""
        self.state = state.detach()

    def read(self, decoder: Any, tokens: Tensor, keep_after: Optional[int] = None) -> Any:
        """Run the decoder on the next segment of the text, and update the state. Return the decoder's output.

        The caller has shifted the tokens [batch size, length] right by one. The state after ``keep_after``
        tokens is stored, and the next segment begins with the token that follows them. If ``keep_after`` is
        None, the state after all tokens is stored. If ``keep_after`` is 0, the state stays unchanged.
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
        (second, extra), _ = decoder.read_segment(tokens[:, end:], state)
        return torch.cat([first, second], dim=1), extra

    def check(self, layers: int, batch_size: int) -> None:
        """Raise InputError if the state has a different number of layers or a different batch size."""
        if self.state is None:
            return
        own_layers, own_batch = len(self.state.layers), self.state.count.size(0)
        if (own_layers, own_batch) != (layers, batch_size):
            raise InputError(
                f"the stream has the state of {own_layers} layers and batch size {own_batch}, got a "
                f"model with {layers} layers and batch size {batch_size}: start a new Stream()"
            )

    def repeat(self, hypotheses: int) -> Optional[DecoderState]:
        """Return the state of a single text, repeated for each hypothesis. None before the first segment."""
        if self.state is None:
            return None
        self.check(len(self.state.layers), 1)
        return self.state.map(lambda x: x.repeat_interleave(hypotheses, dim=0))

    def state_dict(self) -> Dict[str, Any]:
        """Return the state as a dictionary of tensors on the CPU, to store in a checkpoint."""
        if self.state is None:
            return {"layers": [], "count": None, "position": 0}
        state = self.state.to(torch.device("cpu"))
        sums = [(layer.key_sum, layer.value_sum) for layer in state.layers]
        return {"layers": sums, "count": state.count, "position": state.position}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore the state from the dictionary that :meth:`state_dict` returned."""
        self.state = None
        if state["layers"]:
            layers = tuple(LunaCausalState(*sums) for sums in state["layers"])
            self.state = DecoderState(layers, state["count"], state["position"])
