"""``--task streaming_lm``: language modelling of contiguous text."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from omegaconf import II, MISSING

from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingTask
from luna_fairseq.causal_lm.streams import StreamDataset, StreamIterator
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import check_files
from luna_fairseq.models.luna_lm import LunaLanguageModel

logger = logging.getLogger(__name__)


@dataclass
class StreamingLMConfig(FairseqDataclass):
    """Options of ``--task streaming_lm``."""

    data: str = field(default=MISSING, metadata={"help": "folder of the data, as for language_modeling"})
    segment_length: int = field(
        default=512, metadata={"help": "tokens of each of the --batch-size rows that are read at once"}
    )
    bptt_segments: int = field(
        default=0,
        metadata={
            "help": "earlier segments that gradients go through: they are read again with each (0: the state "
            "is taken as it is)"
        },
    )
    # Where a table of learned positions ends; sinusoidal ones have no end.
    tokens_per_sample: int = II("task.segment_length")
    max_target_positions: Optional[int] = II("task.segment_length")
    batch_size: Optional[int] = II("dataset.batch_size")
    batch_size_valid: Optional[int] = II("dataset.batch_size_valid")
    data_parallel_rank: int = II("distributed_training.distributed_rank")
    data_parallel_size: int = II("distributed_training.distributed_world_size")


@register_task("streaming_lm", dataclass=StreamingLMConfig)
class StreamingLMTask(LanguageModelingTask):
    """Each row of a batch is a stream, which goes on where the batch before it ended.

    The data are those of ``--task language_modeling``. A row begins somewhere in the text with nothing
    remembered; with one row (``--batch-size 1``, and fairseq-eval-lm's default) the text is read from
    beginning to end.

    Args:
        cfg: a :class:`StreamingLMConfig`
        dictionary: of the text
    """

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "StreamingLMTask":
        """
        Raises:
            InputError: no dictionary, segments of no token, a negative number of segments
        """
        if cfg.segment_length < 1:
            raise InputError(f"--segment-length is {cfg.segment_length}: it must be 1 or more")
        if cfg.bptt_segments < 0:
            raise InputError(f"--bptt-segments is {cfg.bptt_segments}: it must be 0 (none) or more")
        path = Path(cfg.data) / "dict.txt"
        if not path.is_file():
            raise InputError(f"{path} does not exist: give what fairseq-preprocess or luna-prepare-text made")
        return cls(cfg, Dictionary.load(str(path)))

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """fairseq's. Raises InputError for a model that carries no state from segment to segment."""
        model = super().build_model(cfg, from_checkpoint)
        if not isinstance(model, LunaLanguageModel):
            raise InputError("--task streaming_lm is for luna_lm and its architectures: give --arch luna_lm")
        for name in ("decoder_layerdrop", "checkpoint_activations"):
            if getattr(cfg, name, None):
                raise InputError(
                    f"--{name.replace('_', '-')}: --task streaming_lm carries the state of every layer, leave"
                    " it out"
                )
        return model

    def max_positions(self) -> None:
        return None

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Load train, valid or test.

        Raises:
            InputError: the file is missing, or has fewer tokens than there are rows
        """
        path = Path(self.args.data) / split
        if not indexed_dataset.dataset_exists(str(path), impl=None):
            raise InputError(
                f"{path}.bin and {path}.idx do not exist: prepare the split {split!r}, or name another"
            )
        check_files(path.with_name(f"{split}.bin"))
        text = data_utils.load_indexed_dataset(str(path), self.dictionary, combine=combine)
        training = split == "train"
        rows = (self.args.batch_size if training else self.args.batch_size_valid) or 1
        all_rows = rows * self.args.data_parallel_size
        dataset = StreamDataset(
            text,
            rows,
            self.args.segment_length,
            self.dictionary.pad(),
            self.dictionary.eos(),
            self.args.bptt_segments if training else 0,
            all_rows,
            rows * self.args.data_parallel_rank,
        )
        if not dataset.row_length:
            raise InputError(
                f"{path} has fewer tokens than there are rows ({all_rows}): give a smaller --batch-size"
            )
        logger.info(f"{split}: {all_rows} rows of {dataset.row_length:,} tokens, {len(dataset):,} segments")
        self.datasets[split] = dataset

    def get_batch_iterator(
        self, dataset: Any, num_workers: int = 0, epoch: int = 1, data_buffer_size: int = 0, **kwargs: Any
    ) -> StreamIterator:
        """Segments in their order, whatever the limits of a batch are."""
        return StreamIterator(
            dataset,
            self.args.data_parallel_size,
            num_workers=num_workers,
            epoch=epoch,
            buffer_size=data_buffer_size,
            skip_remainder_batch=kwargs.get("skip_remainder_batch", False),
        )

    def eval_lm_dataloader(self, dataset: Any, context_window: int = 0, **kwargs: Any) -> Any:
        """What fairseq-eval-lm reads. Raises InputError for a window: the whole past is read already."""
        if context_window:
            raise InputError("--context-window: --task streaming_lm remembers the whole text, leave it out")
        return self.get_batch_iterator(dataset, kwargs.get("num_workers", 0)).next_epoch_itr(shuffle=False)
