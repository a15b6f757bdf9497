"""Dataset and iterator for ``--task streaming_lm``.

A text is split into contiguous streams, one per example in a batch. Each batch contains the next segment of
every stream, so that the model can carry its state from batch to batch.
"""

from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq.data import FairseqDataset
from fairseq.data.iterators import CountingIterator, EpochBatchIterator
from luna_fairseq.errors import InputError


class StreamDataset(FairseqDataset):
    """Dataset that splits a text into contiguous streams, and each stream into segments.

    Item i of the dataset is a whole batch: segment i of every stream. Training omits the last few tokens of
    the text so that all streams have the same length.

    Args:
        dataset: indexed dataset that contains the token ids of the text.
        num_streams: number of streams in this process, which is the batch size.
        segment_length: number of tokens per stream in a batch.
        pad: id of the padding token.
        eos: id of the end-of-sentence token, which precedes the first token of the text.
        context_segments: number of earlier segments that each item repeats as context (truncated
            backpropagation through time).
        total_streams: number of streams in all processes.
        first_stream: index of the first stream of this process.
        every_token: keep all tokens, so that some of the first streams are one token longer.
    """

    def __init__(
        self,
        dataset: Any,
        num_streams: int,
        segment_length: int,
        pad: int,
        eos: int,
        context_segments: int,
        total_streams: int,
        first_stream: int,
        every_token: bool = False,
    ):
        super().__init__()
        self.dataset, self.num_streams, self.first_stream = dataset, num_streams, first_stream
        self.segment_length, self.context_segments = segment_length, context_segments
        self.pad, self.eos = pad, eos
        self.ends = np.cumsum(np.asarray(dataset.sizes, dtype=np.int64))
        total = int(self.ends[-1]) if len(self.ends) else 0
        self.stream_length, remainder = divmod(total, total_streams)
        # If every token is used, the first streams across all processes have one more token each.
        self.num_longer_streams = remainder if every_token else 0
        self.max_stream_length = self.stream_length + bool(self.num_longer_streams)

    def __len__(self) -> int:
        return -(-self.max_stream_length // self.segment_length)

    def __getitem__(self, index: int) -> Dict[str, Any]:
        """Return segment ``index`` of every stream, preceded by the segments that serve as context.

        Returns:
            - ``tokens``: token ids [B, 1 + T] of B streams: the preceding token, then the T tokens of the
              context and the segment. A stream that ends early is padded with the padding token.
            - ``context``: number of context tokens, which do not contribute to the loss.
            - ``keep_after``: number of tokens before the next item starts. The model saves its state there.
        """
        first, next_first = (max(0, number - self.context_segments) for number in (index, index + 1))
        start = first * self.segment_length
        end = min((index + 1) * self.segment_length, self.max_stream_length)
        return {
            "tokens": torch.stack([self._tokens(stream, start, end) for stream in range(self.num_streams)]),
            "context": index * self.segment_length - start,
            "keep_after": min(next_first * self.segment_length, end) - start,
        }

    def _tokens(self, stream: int, start: int, end: int) -> Tensor:
        """Return the tokens from ``start`` to ``end`` of a stream, preceded by the token before them.

        The shape is [1 + end - start]. If the stream is one token too short for ``end``, it is padded. The
        token before the text is the end-of-sentence token.
        """
        index = self.first_stream + stream
        if end > self.stream_length + (index < self.num_longer_streams):
            return F.pad(self._tokens(stream, start, end - 1), (0, 1), value=self.pad)
        stream_start = index * self.stream_length + min(index, self.num_longer_streams)
        begin, end = max(0, stream_start + start - 1), stream_start + end
        item = int(np.searchsorted(self.ends, begin, side="right"))
        skipped = begin - (int(self.ends[item - 1]) if item else 0)
        parts, number_read = [], -skipped
        while number_read < end - begin:
            parts.append(self.dataset[item])
            number_read += len(parts[-1])
            item += 1
        tokens = torch.cat(parts)[skipped : skipped + end - begin].long()
        is_start_of_text = stream_start + start == 0
        return torch.cat([tokens.new_tensor([self.eos]), tokens]) if is_start_of_text else tokens

    def collater(self, samples: List[Dict[str, Any]]) -> Dict[str, Any]:
        """Convert the only sample, a whole batch, to a fairseq batch whose context targets are padding."""
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
    """Iterator over the segments of a text in order, which adds the model state to every batch.

    The model state ``stream`` is the recurrent state of each stream after the previous segment. Checkpoints
    store the state, so that a resumed run continues within the text. If there are several ``processes``, only
    the first process writes checkpoints, and it does not have the states of the other processes. A resumed
    run then starts every stream with an empty state.
    """

    def __init__(self, dataset: StreamDataset, stream: Any, processes: int, **kwargs: Any):
        batches = [[index] for index in range(len(dataset))]
        super().__init__(dataset, dataset.collater, batches, disable_shuffling=True, **kwargs)
        self.stream, self.processes = stream, processes

    def next_epoch_itr(self, *args: Any, **kwargs: Any) -> Any:
        """Return an iterator over the batches of an epoch, which adds the model state to every batch.

        The state is empty at the start of an epoch, and restored if a run resumes within an epoch.
        """
        itr = super().next_epoch_itr(*args, **kwargs)
        if not itr.n:
            self.stream.clear()
        self._cur_epoch_itr = CountingIterator(self._add_stream(itr), start=itr.n, total=itr.total)
        return self._cur_epoch_itr

    def _add_stream(self, batches: Any) -> Iterator[Dict[str, Any]]:
        """Yield the batches with the model state added to their ``net_input`` under the key "stream"."""
        for batch in batches:
            batch["net_input"]["stream"] = self.stream
            yield batch

    def state_dict(self) -> Dict[str, Any]:
        """Return the position in the epoch and the model state, for a checkpoint.

        The model state, with the segment settings that it depends on, is included only within an epoch. With
        several processes, the model state is None, because only the first process writes checkpoints.
        """
        state = super().state_dict()
        if state["iterations_in_epoch"]:
            stream_state = self.stream.state_dict() if self.processes == 1 else None
            state["stream"] = {
                **{key: value for key, _, value in self._division_settings()},
                "state": stream_state,
            }
        return state

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Restore the position in the text and, with a single process, the model's recurrent state.

        Raises InputError if the checkpoint was written with different settings, such as the segment length.
        """
        saved = state_dict.get("stream")
        for key, name, value in self._division_settings():
            if saved is not None and saved[key] != value:
                raise InputError(
                    f"The checkpoint was written within an epoch with {name} {saved[key]}, got {value}. Use "
                    f"{saved[key]}, or restart the epoch with --reset-dataloader."
                )
        super().load_state_dict(state_dict)
        if saved is not None and self.processes == 1:
            self.stream.load_state_dict(saved["state"])

    def _division_settings(self) -> List[Tuple[str, str, int]]:
        """Return (key, name in error messages, value) of each setting that a resumed run must not change."""
        dataset: Any = self.dataset
        return [
            ("rows", "number of streams", dataset.num_streams),
            ("segment_length", "segment length", dataset.segment_length),
            ("context_segments", "context segments", dataset.context_segments),
            ("processes", "processes", self.processes),
        ]
