"""P as a memory: an encoder that reads a long text segment by segment, and begins each with the last P of the
segment before ("a running memory across segments", the outlook of Luna's section 6)."""

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Tuple, Type

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.models.bases import extended
from luna_fairseq.modules.no_torchscript import REASON
from luna_fairseq.ops.attention import in_a_graph


class PackedStream:
    """The P after the text so far, which the next segment begins with.

    ``model(tokens, stream=stream)`` goes on from it and leaves it at the end of ``tokens``. Gradients do not
    go from one call into the one before.

    Attributes:
        packed: [L, B, C]; None at the beginning of a text
    """

    def __init__(self) -> None:
        self.packed: Optional[Tensor] = None

    def clear(self) -> None:
        """Forget everything: a text begins."""
        self.packed = None

    def state_dict(self) -> Dict[str, Any]:
        """For a checkpoint, on the CPU."""
        return {"packed": None if self.packed is None else self.packed.cpu()}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Take what :meth:`state_dict` gave."""
        self.packed = state["packed"]

    def for_batch(self, first: Tensor) -> Tensor:
        """P for a model that would begin with ``first`` [L, B, C].

        Raises:
            InputError: it is of another model, or of a batch of other rows
        """
        if self.packed is None:
            return first
        if self.packed.shape != first.shape:
            kept, (L, B, C) = self.packed.shape, first.shape
            raise InputError(
                f"the P that is carried on has {kept[0]} rows of width {kept[2]} for {kept[1]} texts, the "
                f"model {L} rows of width {C} and the batch {B} texts: begin with a new PackedStream()"
            )
        return self.packed.to(first)


class CarriesPacked:
    """What an encoder has besides to carry P. A short segment has all rows of P, too.

    Args:
        cfg: with ``segment_length`` and ``bptt_segments``
    """

    def __init__(self: Any, cfg: Any, *args: Any, **kwargs: Any):
        kwargs["packed_is_read"] = True
        super().__init__(cfg, *args, **kwargs)  # type: ignore[call-arg]
        self.packed_embedding.fix_length = True
        self.first: Optional[Tensor] = None  # P of the segment that is read now
        self.stream: Optional[PackedStream] = None
        self.keep_after: Optional[int] = None

    def first_packed(self: Any, lengths: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """The P that a segment begins with: [L, B, C], of which no row is left out."""
        if self.first is None:
            return super().first_packed(lengths)  # type: ignore[misc]
        return self.first, None

    @contextmanager
    def going_on(self: Any, stream: PackedStream, keep_after: Optional[int] = None) -> Iterator[None]:
        """Texts that are read within go on from ``stream``, which is left after ``keep_after`` of their
        tokens, a whole number of segments (default: all)."""
        self.stream, self.keep_after = stream, keep_after
        try:
            yield
        finally:
            self.stream, self.keep_after = None, None

    def forward(
        self: Any,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
    ) -> Dict[str, List[Any]]:
        """What the encoder returns for ``src_tokens`` [B, S], padded on the right, read segment by segment;
        ``packed_out`` is that of each text where it ends. Positions begin anew with each segment. Raises
        InputError in torch.jit.trace and torch.export."""
        if in_a_graph("is_exporting"):
            raise InputError(REASON)
        S, k = self.cfg.segment_length, getattr(self.cfg, "bptt_segments", None)  # fairseq leaves out None
        count = max(1, -(-src_tokens.size(1) // S))
        embeddings = [None] * count if token_embeddings is None else token_embeddings.split(S, dim=1)
        keep_after = src_tokens.size(1) if self.keep_after is None else self.keep_after
        lengths = src_tokens.ne(self.padding_idx).sum(dim=1)
        packed, longest = self.packed_embedding(lengths)[0], int(lengths.max())
        if self.stream is not None:
            packed = self.stream.for_batch(packed)
        outputs: List[Dict[str, List[Any]]] = []
        read = 0
        for number, (tokens, embedding) in enumerate(zip(src_tokens.split(S, dim=1), embeddings)):
            if number and k is not None and (count - number) % (k + 1) == 0:
                packed = packed.detach()
            if number and number * S >= longest:
                outputs.append(padding_after(outputs[-1], tokens))
            else:
                out, packed = self._read(tokens, embedding, packed, return_all_hiddens)
                outputs.append(out)
            read += tokens.size(1)
            if self.stream is not None and read == keep_after:
                self.stream.packed = packed.detach()
        return joined(outputs, packed)

    def _read(
        self: Any, tokens: Tensor, embedding: Optional[Tensor], packed: Tensor, all_hiddens: bool
    ) -> Tuple[Dict[str, List[Any]], Tensor]:
        """One segment after ``packed``, and the P for the next; texts that have ended keep theirs."""
        going = tokens.ne(self.padding_idx).any(dim=1)
        if not bool(going.all()):
            rows = going.nonzero().squeeze(1)
            part = None if embedding is None else embedding[rows]
            out, new = self._read(tokens[rows], part, packed[:, rows], all_hiddens)
            for name in ("encoder_out", "encoder_states"):
                out[name] = [
                    x.new_zeros(x.size(0), len(going), x.size(2)).index_copy(1, rows, x) for x in out[name]
                ]
            out["packed_states"] = [packed.index_copy(1, rows, p.to(packed)) for p in out["packed_states"]]
            out["encoder_padding_mask"] = [tokens.eq(self.padding_idx)]
            return out, packed.index_copy(1, rows, new.to(packed))
        self.first = packed
        try:
            out = super().forward(tokens, None, all_hiddens, embedding)  # type: ignore[misc]
        finally:
            self.first = None
        return out, out["packed_out"][0]


def padding_after(out: Dict[str, List[Any]], tokens: Tensor) -> Dict[str, List[Any]]:
    """What an encoder returns for ``tokens`` [B, S] that all are padding, after a segment with ``out``."""
    zeros = {
        name: [x.new_zeros(tokens.size(1), *x.shape[1:]) for x in out[name]]
        for name in ("encoder_out", "encoder_states")
    }
    return {**out, **zeros, "encoder_padding_mask": [torch.ones_like(tokens, dtype=torch.bool)]}


def joined(outputs: List[Dict[str, List[Any]]], packed: Tensor) -> Dict[str, List[Any]]:
    """An encoder's outputs for the segments of a text as one, and the last P."""
    states = [torch.cat(layer) for layer in zip(*(out["encoder_states"] for out in outputs))]
    masks = torch.cat([out["encoder_padding_mask"][0] for out in outputs], dim=1)
    return {
        **outputs[-1],
        "encoder_out": [torch.cat([out["encoder_out"][0] for out in outputs])],
        "encoder_padding_mask": [masks],
        "has_padding": [bool(masks.any())],
        "encoder_states": states,
        "encoder_embedding": [],
        "src_tokens": [],
        "packed_out": [packed],
        "src_lengths": [(~masks).sum(dim=1, keepdim=True)],
    }


def carrying(encoder: Any, cfg: Any) -> Type[Any]:
    """The class ``encoder``, with :class:`CarriesPacked` where the options ask for it."""
    if not cfg.carry_packed:
        return encoder
    check_segments(cfg)
    return extended(encoder, CarriesPacked)


def check_segments(cfg: Any) -> None:
    """Raise InputError for segments of no token, or a negative number of segments."""
    if cfg.segment_length < 1:
        raise InputError(f"--segment-length is {cfg.segment_length}: it must be 1 or more")
    if cfg.bptt_segments is not None and cfg.bptt_segments < 0:
        raise InputError(f"--bptt-segments is {cfg.bptt_segments}: it must be 0 (none) or more")
