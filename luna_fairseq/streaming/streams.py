"""A text as streams: each row of a batch goes on where the row of the batch before it ended."""

from typing import Any, Callable, Dict, Iterator, List, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq.data import FairseqDataset
from fairseq.data.iterators import CountingIterator, EpochBatchIterator
from luna_fairseq.errors import InputError


class StreamDataset(FairseqDataset):
    """Batches of a text that is cut into rows, and each row into segments: item i is segment i of all rows.

    What is left over where the rows do not divide the tokens, fewer than there are rows, is not read.

    Args:
        dataset: an indexed dataset, whose items follow one another in the text
        rows: B, of this process
        segment_length: S, tokens of a segment
        pad: index of padding
        eos: index of what stands before the first token
        context_segments: k, segments that are read again before each, for their gradient
        all_rows, first_row: those of all processes, and which of them are this one's
    """

    def __init__(
        self,
        dataset: Any,
        rows: int,
        segment_length: int,
        pad: int,
        eos: int,
        context_segments: int,
        all_rows: int,
        first_row: int,
    ):
        super().__init__()
        self.dataset, self.rows, self.all_rows, self.first_row = dataset, rows, all_rows, first_row
        self.segment_length, self.context_segments = segment_length, context_segments
        self.pad, self.eos = pad, eos
        self.ends = np.cumsum(np.asarray(dataset.sizes, dtype=np.int64))
        self.row_length = int(self.ends[-1]) // all_rows if len(self.ends) else 0

    def __len__(self) -> int:
        return -(-self.row_length // self.segment_length)

    def __getitem__(self, index: int) -> Dict[str, Any]:
        """Tokens [B, T] of segment ``index``, with the segments of context before it, and what was before
        each of them [B, T]; how many tokens are context, and after how many the next window begins."""
        sample = self.window(index)
        start, end = self._ends(sample["first"])[0], self._ends(index)[1]
        tokens = torch.stack([self._tokens(row, start, end) for row in range(self.rows)])  # [B, 1 + T]
        return {**sample, "before": tokens[:, :-1], "tokens": tokens[:, 1:]}

    def window(self, index: int) -> Dict[str, int]:
        """Of the segments that are read with segment ``index``: the first, how many tokens are context, and
        after how many the next window begins."""
        first, next_first = (max(0, number - self.context_segments) for number in (index, index + 1))
        start, end = self._ends(first)[0], self._ends(index)[1]
        keep_after = min(next_first * self.segment_length, end) - start
        context = index * self.segment_length - start
        return {"index": index, "first": first, "context": context, "keep_after": keep_after}

    def segment(self, index: int, row: int) -> Tensor:
        """Tokens of segment ``index`` in one row."""
        return self._tokens(row, *self._ends(index))[1:]

    def _ends(self, index: int) -> Tuple[int, int]:
        start = index * self.segment_length
        return start, min(start + self.segment_length, self.row_length)

    def _tokens(self, row: int, start: int, end: int) -> Tensor:
        """The token before ``start`` in a row and those from it to ``end`` [1 + end - start]."""
        offset = (self.first_row + row) * self.row_length
        start, end = offset + start, offset + end
        begin = max(0, start - 1)
        item = int(np.searchsorted(self.ends, begin, side="right"))
        offset = begin - (int(self.ends[item - 1]) if item else 0)
        parts, found = [], -offset
        while found < end - begin:
            parts.append(self.dataset[item])
            found += len(parts[-1])
            item += 1
        tokens = torch.cat(parts)[offset : offset + end - begin].long()
        return tokens if start else torch.cat([tokens.new_tensor([self.eos]), tokens])

    def collater(self, samples: List[Dict[str, Any]]) -> Dict[str, Any]:
        """fairseq's sample of the one item of ``samples``."""
        (sample,) = samples
        target = sample["tokens"].clone()
        target[:, : sample["context"]] = self.pad
        return self.batch(sample, sample["before"], target)

    def batch(self, sample: Dict[str, Any], tokens: Tensor, target: Tensor) -> Dict[str, Any]:
        """For a model that reads ``tokens`` and a criterion that scores ``target`` [B, T]."""
        B, T = tokens.shape
        read = {"src_tokens": tokens, "src_lengths": torch.full((B,), T), "keep_after": sample["keep_after"]}
        return {
            "id": torch.arange(B) + self.first_row,
            "nsentences": B,
            "ntokens": B * (T - sample["context"]),
            "start_indices": [sample["context"]] * B,
            "net_input": read,
            "target": target,
        }


class MaskedStreamDataset(StreamDataset):
    """Streams whose segments are masked.

    Args:
        args, kwargs: of :class:`StreamDataset`
        mask: of a dataset of segments, one row's after the other's, and whether targets are wanted: the
            dataset of what is read, or of the tokens that were masked (padding elsewhere)
    """

    def __init__(self, *args: Any, mask: Callable[[Any, bool], Any], **kwargs: Any):
        super().__init__(*args, **kwargs)
        pieces = _Pieces(self)
        self.masked, self.targets = mask(pieces, False), mask(pieces, True)

    def set_epoch(self, epoch: int) -> None:
        """Other tokens are masked in each epoch."""
        self.masked.set_epoch(epoch)
        self.targets.set_epoch(epoch)

    def __getitem__(self, index: int) -> Dict[str, Any]:
        """What is read [B, T] of segment ``index`` and its context, and its masked tokens [B, S]."""
        sample = self.window(index)
        read = [self._rows(self.masked, number) for number in range(sample["first"], index + 1)]
        return {**sample, "tokens": torch.cat(read, dim=1), "target": self._rows(self.targets, index)}

    def _rows(self, pieces: Any, index: int) -> Tensor:
        first = index * self.all_rows + self.first_row
        return torch.stack([pieces[first + row] for row in range(self.rows)])

    def collater(self, samples: List[Dict[str, Any]]) -> Dict[str, Any]:
        """fairseq's sample of the one item of ``samples``."""
        (sample,) = samples
        target = F.pad(sample["target"], (sample["context"], 0), value=self.pad)
        return self.batch(sample, sample["tokens"], target)


class _Pieces(FairseqDataset):
    """Segments of all processes' rows, one row's after the other's: no two are masked alike."""

    def __init__(self, streams: StreamDataset):
        self.streams = streams

    def __len__(self) -> int:
        return len(self.streams) * self.streams.all_rows

    def __getitem__(self, index: int) -> Tensor:
        segment, row = divmod(index, self.streams.all_rows)
        return self.streams.segment(segment, row - self.streams.first_row)


class StreamIterator(EpochBatchIterator):
    """Batches in their order. Each carries the stream that the model goes on from; a checkpoint holds it, so
    that a resumed run goes on in the middle of the text. Of several processes the first one alone writes
    checkpoints, and does not know the others' rows: what is remembered of all rows begins anew.

    Args:
        dataset: the streams
        stream: what the model remembers
        processes: that train
        kwargs: of fairseq's iterator
    """

    def __init__(self, dataset: StreamDataset, stream: Any, processes: int, **kwargs: Any):
        batches = [[index] for index in range(len(dataset))]
        super().__init__(dataset, dataset.collater, batches, disable_shuffling=True, **kwargs)
        # Workers that outlive their epoch wait for nothing, and each is waited for five seconds in the end.
        self.persistent_workers = False
        self.stream, self.processes = stream, processes

    def next_epoch_itr(self, *args: Any, **kwargs: Any) -> Any:
        """fairseq's, with the stream in every batch."""
        itr = super().next_epoch_itr(*args, **kwargs)
        if not itr.n:
            self.stream.clear()
        self._cur_epoch_itr = CountingIterator(self._carrying(itr), start=itr.n, total=itr.total)
        return self._cur_epoch_itr

    def _carrying(self, batches: Any) -> Iterator[Dict[str, Any]]:
        for batch in batches:
            batch["net_input"]["stream"] = self.stream
            yield batch

    def state_dict(self) -> Dict[str, Any]:
        """fairseq's, with what the model remembers of the rows, and how they were cut."""
        state = super().state_dict()
        if state["iterations_in_epoch"]:
            kept = self.stream.state_dict() if self.processes == 1 else None
            state["stream"] = {**self._cut(), "state": kept}
        return state

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """fairseq's. Raises InputError where the text was cut into other rows or segments."""
        kept = state_dict.get("stream")
        for name, now in self._cut().items():
            if kept is not None and kept[name] != now:
                raise InputError(
                    f"the checkpoint stopped within a text that was read with {name.replace('_', ' ')} "
                    f"{kept[name]}, now it is {now}: go on with that, or begin the epoch anew with "
                    "--reset-dataloader"
                )
        super().load_state_dict(state_dict)
        if kept is not None and self.processes == 1:
            self.stream.load_state_dict(kept["state"])

    def _cut(self) -> Dict[str, int]:
        names = ("rows", "segment_length", "context_segments")
        return {**{name: getattr(self.dataset, name) for name in names}, "processes": self.processes}
