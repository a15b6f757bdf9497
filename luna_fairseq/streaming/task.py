"""``--task streaming_lm``: language modelling of contiguous text in constant memory."""

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from omegaconf import II, MISSING

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.distributed.utils import get_global_rank, get_global_world_size
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingTask
from luna_fairseq.checks.bounds import LEAST
from luna_fairseq.errors import InputError
from luna_fairseq.models.luna_lm import LunaLanguageModel
from luna_fairseq.models.options import option
from luna_fairseq.models.stream import Stream
from luna_fairseq.streaming.streams import StreamDataset, StreamIterator
from luna_fairseq.text.indexed import read_indexed

logger = logging.getLogger(__name__)


@dataclass
class StreamingLMConfig(FairseqDataclass):
    """Options of ``--task streaming_lm``."""

    data: str = option(MISSING, "folder of the data, as for language_modeling")
    segment_length: int = option(
        512, "number of tokens that are read at once from each stream of a batch", least=1
    )
    bptt_segments: int = option(
        0,
        "number of earlier segments that gradients reach: they are read again with each segment (0: gradients"
        " stop at the beginning of the segment)",
        least=0,
    )
    # The size of a table of learned positions. Sinusoidal positions have no limit.
    tokens_per_sample: int = field(default=II("task.segment_length"), metadata={LEAST: 1})
    max_target_positions: Optional[int] = field(default=II("task.segment_length"), metadata={LEAST: 1})
    batch_size: Optional[int] = field(default=II("dataset.batch_size"), metadata={LEAST: 1})
    batch_size_valid: Optional[int] = field(default=II("dataset.batch_size_valid"), metadata={LEAST: 1})
    train_subset: str = II("dataset.train_subset")


@register_task("streaming_lm", dataclass=StreamingLMConfig)
class StreamingLMTask(LanguageModelingTask):
    """Language modelling in which each example of a batch continues the same example of the batch before.

    The data is the data of ``--task language_modeling``. The text is cut into as many streams as the batches
    of all processes have examples. Each stream begins with an empty state. Validation and evaluation read
    every token; training leaves out fewer than there are streams. With ``--batch-size 1``, which is the
    default of fairseq-eval-lm, the text is read from beginning to end.

    Args:
        cfg: a :class:`StreamingLMConfig`
        dictionary: dictionary of the text
    """

    has_positions = False

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "StreamingLMTask":
        """Load the dictionary.

        Raises:
            InputError: the dictionary is missing, or the data is more than one folder
        """
        folders = (cfg.data or "").split(os.pathsep)
        if len(folders) > 1:
            raise InputError(
                f"--task streaming_lm reads the text of one folder, not of {len(folders)} ({cfg.data}): give "
                "one, or prepare the whole text as one"
            )
        path = Path(cfg.data or "") / "dict.txt"
        if not path.is_file():
            raise InputError(f"{path} does not exist: give what fairseq-preprocess or luna-prepare-text made")
        return cls(cfg, Dictionary.load(str(path)))

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model.

        Raises:
            InputError: the model cannot carry its state from segment to segment
        """
        model = super().build_model(cfg, from_checkpoint)
        if not isinstance(model, LunaLanguageModel):
            raise InputError("--task streaming_lm is for luna_lm and its architectures: give --arch luna_lm")
        for name in ("decoder_layerdrop", "checkpoint_activations"):
            if getattr(cfg, name, None):
                raise InputError(
                    f"--{name.replace('_', '-')}: --task streaming_lm carries the state of every layer, leave"
                    " it out"
                )
        self.has_positions = model.decoder.embed_positions is not None
        return model

    def max_positions(self) -> None:
        """Return None: a stream has no maximum length."""
        return None

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Load a split and cut it into streams. Only training reads earlier segments again.

        Args:
            split: train, valid or test
            combine: also read the split's numbered files, such as train1

        Raises:
            InputError: the file is missing, or has fewer tokens than there are streams
        """
        options, dictionary = self.args, self.source_dictionary
        path = Path(options.data) / split
        text = read_indexed(path, dictionary, combine)
        training = split == options.train_subset
        streams = (options.batch_size if training else options.batch_size_valid) or 1
        all_streams, first_stream = streams * get_global_world_size(), streams * get_global_rank()
        dataset = StreamDataset(
            text,
            streams,
            options.segment_length,
            dictionary.pad(),
            dictionary.eos(),
            options.bptt_segments if training else 0,
            all_streams,
            first_stream,
            every_token=not training,
        )
        if not dataset.stream_length:
            raise InputError(
                f"{path} has fewer tokens than there are streams ({all_streams}): give a smaller --batch-size"
            )
        logger.info(
            f"{split}: {all_streams} streams of {dataset.stream_length:,} tokens, {len(dataset):,} segments"
        )
        if self.has_positions and training:
            logger.warning(
                f"positions count from the beginning of a stream, to {dataset.stream_length:,}: a longer text"
                " will be read badly; give --no-token-positional-embeddings and --causal-decay"
            )
        self.datasets[split] = dataset

    def get_batch_iterator(self, dataset: Any, **kwargs: Any) -> Any:
        """Return an iterator over the segments in their order, whatever other limits a batch has.

        For any other dataset, such as the sentences that fairseq-interactive reads, return fairseq's iterator
        without a maximum length.

        Raises:
            InputError: the dataset was loaded for another batch size; fairseq-validate takes it from the
                checkpoint
        """
        if not isinstance(dataset, StreamDataset):
            return super().get_batch_iterator(dataset, **{**kwargs, "max_positions": None})
        batch_size = kwargs.get("max_sentences")
        if batch_size is not None and batch_size != dataset.streams:
            raise InputError(
                f"--batch-size {batch_size}: the text is read in {dataset.streams} streams, as in training: "
                f"give --batch-size-valid {batch_size}, too"
            )
        return StreamIterator(
            dataset,
            Stream(),
            get_global_world_size(),
            num_workers=kwargs.get("num_workers", 0),
            epoch=kwargs.get("epoch", 1),
            buffer_size=kwargs.get("data_buffer_size", 0),
            skip_remainder_batch=kwargs.get("skip_remainder_batch", False),
        )

    def eval_lm_dataloader(self, dataset: Any, context_window: int = 0, **kwargs: Any) -> Any:
        """Return the batches that fairseq-eval-lm scores.

        Raises:
            InputError: a context window was given, although the model remembers the whole text before
        """
        if context_window:
            raise InputError("--context-window: --task streaming_lm remembers the whole text, leave it out")
        batches = self.get_batch_iterator(dataset, num_workers=kwargs.get("num_workers", 0))
        return batches.next_epoch_itr(shuffle=False)
