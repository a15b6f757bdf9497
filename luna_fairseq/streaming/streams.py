"""Dataset and iterator of streams, whose examples continue from batch to batch."""

from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq.data import FairseqDataset
from fairseq.data.iterators import CountingIterator, EpochBatchIterator
from luna_fairseq.errors import InputError


class StreamDataset(FairseqDataset):
    """Dataset that cuts a text into streams, and each stream into segments.

    Item i has segment i of all streams. All streams have the same length, so that a few tokens at the end of
    the text are not read, fewer than the number of streams. With ``every_token``, these tokens are read: some
    of the first streams are longer by one token.

    Args:
        dataset: indexed dataset with the items of the text in their order.
        streams: number of streams of this process, the batch size B.
        segment_length: number of tokens of a segment.
        pad: index of the padding symbol.
        eos: index of the symbol that precedes the first token.
        context_segments: number of earlier segments that are read again with each segment, so that gradients
            flow into them.
        all_streams: number of streams of all processes.
        first_stream: index of the first stream of this process.
        every_token: read every token of the text (default: False).
    """

    def __init__(
        self,
        dataset: Any,
        streams: int,
        segment_length: int,
        pad: int,
        eos: int,
        context_segments: int,
        all_streams: int,
        first_stream: int,
        every_token: bool = False,
    ):
        super().__init__()
        self.dataset, self.streams, self.first_stream = dataset, streams, first_stream
        self.segment_length, self.context_segments = segment_length, context_segments
        self.pad, self.eos = pad, eos
        self.ends = np.cumsum(np.asarray(dataset.sizes, dtype=np.int64))
        total = int(self.ends[-1]) if len(self.ends) else 0
        self.stream_length, left = divmod(total, all_streams)
        self.longer = left if every_token else 0  # number of streams with one token more
        self.longest = self.stream_length + bool(self.longer)

    def __len__(self) -> int:
        return -(-self.longest // self.segment_length)

    def __getitem__(self, index: int) -> Dict[str, Any]:
        """Return one segment of every stream, preceded by the earlier segments that are read again.

        Args:
            index: index of the segment.

        Returns:
            A dict with.

            - ``tokens`` [B, 1 + T]: the preceding token and the T tokens of the segments. In shorter streams,
              the last token is padding.
            - ``context``: number of tokens that are read again.
            - ``keep_after``: number of tokens before the first token of the next item.
        """
        first, next_first = (max(0, number - self.context_segments) for number in (index, index + 1))
        start = first * self.segment_length
        end = min((index + 1) * self.segment_length, self.longest)
        return {
            "tokens": torch.stack([self._tokens(stream, start, end) for stream in range(self.streams)]),
            "context": index * self.segment_length - start,
            "keep_after": min(next_first * self.segment_length, end) - start,
        }

    def _tokens(self, stream: int, start: int, end: int) -> Tensor:
        """Return tokens of a stream, after the token that precedes them [1 + T].

        Args:
            stream: index of the stream in this process.
            start: position of the first token in the stream.
            end: position after the last token.
        """
        number = self.first_stream + stream
        if end > self.stream_length + (number < self.longer):
            return F.pad(self._tokens(stream, start, end - 1), (0, 1), value=self.pad)
        offset = number * self.stream_length + min(number, self.longer)
        start, end = offset + start, offset + end
        begin = max(0, start - 1)
        item = int(np.searchsorted(self.ends, begin, side="right"))
        offset = begin - (int(self.ends[item - 1]) if item else 0)
        parts, number_read = [], -offset
        while number_read < end - begin:
            parts.append(self.dataset[item])
            number_read += len(parts[-1])
            item += 1
        tokens = torch.cat(parts)[offset : offset + end - begin].long()
        return tokens if start else torch.cat([tokens.new_tensor([self.eos]), tokens])

    def collater(self, samples: List[Dict[str, Any]]) -> Dict[str, Any]:
        """Convert an item to a batch. Tokens that are read again have padding as their target.

        Args:
            samples: list with one item.
        """
        (sample,) = samples
        context, source, target = sample["context"], sample["tokens"][:, :-1], sample["tokens"][:, 1:].clone()
        target[:, :context] = self.pad
        B, T = source.shape
        return {
            "id": torch.arange(B) + self.first_stream,
            "nsentences": B,
            "ntokens": int(target.ne(self.pad).sum()),
            "start_indices": [context] * B,
            "net_input": {
                "src_tokens": source,
                "src_lengths": torch.full((B,), T),
                "keep_after": sample["keep_after"],
            },
            "target": target,
        }


class StreamIterator(EpochBatchIterator):
    """Iterator over the segments of a text in their order, with the state of the model in every batch.

    A checkpoint stores the state, so that a resumed run continues within the text. With several processes,
    only the first process writes checkpoints, and it does not have the states of the other processes. All
    streams of a resumed run then start with an empty state.

    Args:
        dataset: segments of the text.
        stream: state of the model between segments, a :class:`luna_fairseq.models.stream.Stream`.
        processes: number of training processes.
        kwargs: further arguments of fairseq's iterator.
    """

    def __init__(self, dataset: StreamDataset, stream: Any, processes: int, **kwargs: Any):
        batches = [[index] for index in range(len(dataset))]
        super().__init__(dataset, dataset.collater, batches, disable_shuffling=True, **kwargs)
        # At the end, fairseq would wait five seconds for each persistent worker.
        self.persistent_workers = False
        self.stream, self.processes = stream, processes

    def next_epoch_itr(self, *args: Any, **kwargs: Any) -> Any:
        """Return fairseq's iterator with the stream in every batch. A new epoch clears the stream.

        Args:
            args: positional arguments of fairseq's method.
            kwargs: keyword arguments of fairseq's method.
        """
        itr = super().next_epoch_itr(*args, **kwargs)
        if not itr.n:
            self.stream.clear()
        self._cur_epoch_itr = CountingIterator(self._add_stream(itr), start=itr.n, total=itr.total)
        return self._cur_epoch_itr

    def _add_stream(self, batches: Any) -> Iterator[Dict[str, Any]]:
        """Yield the batches with the stream among the arguments of the model."""
        for batch in batches:
            batch["net_input"]["stream"] = self.stream
            yield batch

    def state_dict(self) -> Dict[str, Any]:
        """Return fairseq's state and, within an epoch, the stream and the division of the text."""
        state = super().state_dict()
        if state["iterations_in_epoch"]:
            stream_state = self.stream.state_dict() if self.processes == 1 else None
            state["stream"] = {**{key: value for key, _, value in self._division()}, "state": stream_state}
        return state

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Restore the position in the text and the stream.

        Args:
            state_dict: result of :meth:`state_dict`.

        Raises:
            InputError: The text was divided into another number of streams or segments.
        """
        saved = state_dict.get("stream")
        for key, name, value in self._division():
            if saved is not None and saved[key] != value:
                raise InputError(
                    f"The checkpoint was written within an epoch with {name} {saved[key]}, got {value}. Use "
                    f"{saved[key]}, or restart the epoch with --reset-dataloader."
                )
        super().load_state_dict(state_dict)
        if saved is not None and self.processes == 1:
            self.stream.load_state_dict(saved["state"])

    def _division(self) -> List[Tuple[str, str, int]]:
        """Return the numbers that divide the text: tuples of key in checkpoints, name in messages, number."""
        dataset: Any = self.dataset
        return [
            ("rows", "number of streams", dataset.streams),
            ("segment_length", "segment length", dataset.segment_length),
            ("context_segments", "context segments", dataset.context_segments),
            ("processes", "processes", self.processes),
        ]
