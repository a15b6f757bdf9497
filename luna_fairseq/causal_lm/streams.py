"""A text as streams: each row of a batch goes on where the row of the batch before it ended."""

from typing import Any, Dict, Iterator, List, Optional

import numpy as np
import torch
from torch import Tensor

from fairseq.data import FairseqDataset
from fairseq.data.iterators import CountingIterator, EpochBatchIterator
from luna_fairseq.errors import InputError
from luna_fairseq.models.stream import Stream


class StreamDataset(FairseqDataset):
    """Batches of a text that is cut into rows, and each row into segments: item i is segment i of all rows.

    What is left over where the rows do not divide the tokens, fewer than there are rows, is not read.

    Args:
        dataset: an indexed dataset, whose items follow one another in the text
        rows: B, of this process
        segment_length: S, tokens of a segment
        pad: index of padding
        eos: index of what stands before the first token
        context_segments: k, segments that are read again before each, for their gradient (default: 0)
        all_rows, first_row: those of all processes, and which of them are this one's (default: all are)
    """

    def __init__(
        self,
        dataset: Any,
        rows: int,
        segment_length: int,
        pad: int,
        eos: int,
        context_segments: int = 0,
        all_rows: Optional[int] = None,
        first_row: int = 0,
    ):
        super().__init__()
        self.dataset, self.rows, self.first_row = dataset, rows, first_row
        self.segment_length, self.context_segments = segment_length, context_segments
        self.pad, self.eos = pad, eos
        self.ends = np.cumsum(np.asarray(dataset.sizes, dtype=np.int64))
        self.row_length = int(self.ends[-1]) // (all_rows or rows) if len(self.ends) else 0

    def __len__(self) -> int:
        return -(-self.row_length // self.segment_length)

    def __getitem__(self, index: int) -> Dict[str, Any]:
        """Tokens [B, T] of segment ``index``, with the segments of context before it, and what was before
        each of them [B, T]; how many tokens are context, and after how many the next window begins."""
        S = self.segment_length
        first = max(0, index - self.context_segments)
        start, end = first * S, min((index + 1) * S, self.row_length)
        rows = [
            self._tokens((self.first_row + row) * self.row_length + start, end - start)
            for row in range(self.rows)
        ]
        tokens = torch.stack(rows)  # [B, 1 + T]
        next_first = max(0, index + 1 - self.context_segments)
        return {
            "index": index,
            "before": tokens[:, :-1],
            "tokens": tokens[:, 1:],
            "context": index * S - start,
            "keep_after": min(next_first * S, end) - start,
        }

    def _tokens(self, start: int, number: int) -> Tensor:
        """The token before ``start`` and ``number`` tokens from it on [1 + number]."""
        begin, end = max(0, start - 1), start + number
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
        B, T = target.shape
        return {
            "id": torch.arange(B) + self.first_row,
            "nsentences": B,
            "ntokens": B * (T - sample["context"]),
            "start_indices": [sample["context"]] * B,
            "net_input": {
                "src_tokens": sample["before"],
                "src_lengths": torch.full((B,), T),
                "keep_after": sample["keep_after"],
            },
            "target": target,
        }

    def num_tokens(self, index: int) -> int:
        return self.rows * self.segment_length

    def size(self, index: int) -> int:
        return self.segment_length

    @property
    def supports_prefetch(self) -> bool:
        return False


class StreamIterator(EpochBatchIterator):
    """Batches in their order. Each carries the :class:`Stream` that the model goes on from; a checkpoint
    holds it, so that a resumed run goes on in the middle of the text.

    Args:
        dataset: the streams
        processes: that train (default: 1)
        kwargs: of fairseq's iterator
    """

    def __init__(self, dataset: StreamDataset, processes: int = 1, **kwargs: Any):
        batches = [[index] for index in range(len(dataset))]
        super().__init__(
            dataset=dataset,
            collate_fn=dataset.collater,
            batch_sampler=batches,
            disable_shuffling=True,
            **kwargs,
        )
        self.processes = processes
        self.stream = Stream()

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
            state["stream"] = {**self._cut(), "state": self.stream.state_dict()}
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
        if kept is not None:
            self.stream.load_state_dict(kept["state"])

    def _cut(self) -> Dict[str, int]:
        data: Any = self.dataset
        cut = {
            "rows": data.rows,
            "segment_length": data.segment_length,
            "context_segments": data.context_segments,
        }
        return {**cut, "processes": self.processes}
