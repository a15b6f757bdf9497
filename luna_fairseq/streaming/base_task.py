"""What the tasks of contiguous text share: each row of a batch is a stream."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from omegaconf import II

from fairseq.dataclass import FairseqDataclass
from fairseq.distributed.utils import get_global_rank, get_global_world_size
from fairseq.tasks import FairseqTask
from luna_fairseq.errors import InputError
from luna_fairseq.streaming.streams import StreamDataset, StreamIterator
from luna_fairseq.text.indexed import read_indexed

logger = logging.getLogger(__name__)


@dataclass
class RowOptions(FairseqDataclass):
    """What says how many rows a process has, and in which split. How many processes there are, and which is
    this one, no option knows before they are started."""

    batch_size: Optional[int] = II("dataset.batch_size")
    batch_size_valid: Optional[int] = II("dataset.batch_size_valid")
    train_subset: str = II("dataset.train_subset")


class StreamingTask(FairseqTask):
    """A row goes on where the row of the batch before it ended. It begins somewhere in the text with nothing
    remembered; with one row (``--batch-size 1``) the text is read from beginning to end."""

    new_stream: Callable[[], Any]

    @property
    def options(self: Any) -> Any:
        """The task's own; fairseq's older tasks have them as ``args`` alone."""
        return self.args if self.cfg is None else self.cfg

    def read_streams(
        self,
        streams: Callable[..., StreamDataset],
        split: str,
        combine: bool,
        segment_length: int,
        bptt_segments: int,
    ) -> StreamDataset:
        """The text of a split in segments; validation goes through none of them twice.

        Args:
            streams: the class
            split: train, valid or test
            combine: read its numbered files, too
            segment_length: tokens of each row that are read at once
            bptt_segments: earlier segments that are read again with each

        Raises:
            InputError: the file is missing, or has fewer tokens than there are rows
        """
        options = self.options
        path, dictionary = Path(options.data) / split, self.source_dictionary
        text = read_indexed(path, dictionary, combine)
        training = split == options.train_subset
        rows = (options.batch_size if training else options.batch_size_valid) or 1
        all_rows, first_row = rows * get_global_world_size(), rows * get_global_rank()
        again = bptt_segments if training else 0
        ends = dictionary.pad(), dictionary.eos()
        dataset = streams(text, rows, segment_length, *ends, again, all_rows, first_row)
        if not dataset.row_length:
            raise InputError(
                f"{path} has fewer tokens than there are rows ({all_rows}): give a smaller --batch-size"
            )
        logger.info(f"{split}: {all_rows} rows of {dataset.row_length:,} tokens, {len(dataset):,} segments")
        return dataset

    def get_batch_iterator(self, dataset: Any, **kwargs: Any) -> Any:
        """Segments in their order, whatever else the limits of a batch are; of sentences that each stand for
        themselves, as from Python and of fairseq-interactive, fairseq's iterator, and of any length. Raises
        InputError where a batch is to have other rows than were read: fairseq-validate has their number from
        the checkpoint."""
        if not isinstance(dataset, StreamDataset):
            return super().get_batch_iterator(dataset, **{**kwargs, "max_positions": None})
        rows, epoch = kwargs.get("max_sentences"), kwargs.get("epoch", 1)
        if rows is not None and rows != dataset.rows:
            raise InputError(
                f"--batch-size {rows}: the text is read in {dataset.rows} rows, as in training: give "
                f"--batch-size-valid {rows}, too"
            )
        dataset.set_epoch(epoch)
        return StreamIterator(
            dataset,
            self.new_stream(),
            get_global_world_size(),
            num_workers=kwargs.get("num_workers", 0),
            epoch=epoch,
            buffer_size=kwargs.get("data_buffer_size", 0),
            skip_remainder_batch=kwargs.get("skip_remainder_batch", False),
        )


def check_text(data: Optional[str]) -> Path:
    """The dictionary in the folder ``data``. Raises InputError where there is none."""
    path = Path(data or "") / "dict.txt"
    if not path.is_file():
        raise InputError(f"{path} does not exist: give what fairseq-preprocess or luna-prepare-text made")
    return path
