"""Task ``streaming_lm``: language modeling of long texts with a recurrent state of constant size."""

import logging
import os
import sys
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
from luna_fairseq.modules.positions import LearnedPositions
from luna_fairseq.streaming.streams import StreamDataset, StreamIterator
from luna_fairseq.text.indexed import read_indexed

logger = logging.getLogger(__name__)


@dataclass
class StreamingLMConfig(FairseqDataclass):
    """Options of ``--task streaming_lm``, causal language modeling of long texts in segments."""

    data: str = option(MISSING, "folder of the data, as for language_modeling")
    segment_length: int = option(512, "number of tokens of each stream in a batch", least=1)
    bptt_segments: int = option(
        0,
        "number of earlier segments that are read again with each segment, so that gradients flow into them "
        "(0: gradients stop at the beginning of the segment)",
        least=0,
    )
    # The size of the learned positional embedding table. Sinusoidal positions have no limit.
    tokens_per_sample: int = field(default=II("task.segment_length"), metadata={LEAST: 1})
    max_target_positions: Optional[int] = field(default=II("task.segment_length"), metadata={LEAST: 1})
    batch_size: Optional[int] = field(default=II("dataset.batch_size"), metadata={LEAST: 1})
    batch_size_valid: Optional[int] = field(default=II("dataset.batch_size_valid"), metadata={LEAST: 1})
    train_subset: str = II("dataset.train_subset")


@register_task("streaming_lm", dataclass=StreamingLMConfig)
class StreamingLMTask(LanguageModelingTask):
    """Language modeling task in which example i of a batch continues example i of the previous batch.

    The task reads the same data as ``--task language_modeling`` and splits the text into contiguous streams.
    Each process has one stream for each example in its batches. Every stream starts with an empty state.

    Every split but the training split is used whole. A few tokens at the end of the training split are
    omitted, also in evaluation, fewer than the number of streams. With ``--batch-size 1``, the default of
    fairseq-eval-lm, the text is a single stream, and no token is omitted.

    Attributes:
        has_positions: True if the model adds positional embeddings to the token embeddings.
        reads_any_length: True, because the length of a text is limited only by learned positions, which the
            model checks itself.
    """

    has_positions = False
    reads_any_length = True

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "StreamingLMTask":
        """Create the task with the dictionary ``dict.txt`` of the data folder.

        Raises InputError if this file is missing, or if there are several data folders.
        """
        folders = (cfg.data or "").split(os.pathsep)
        if len(folders) > 1:
            raise InputError(
                f"--task streaming_lm reads one folder, got {len(folders)} ({cfg.data}). Prepare the whole "
                "text in one folder."
            )
        path = Path(cfg.data or "") / "dict.txt"
        if not path.is_file():
            raise InputError(
                f"{path} does not exist. Give a folder that fairseq-preprocess or luna-prepare-text wrote."
            )
        return cls(cfg, Dictionary.load(str(path)))

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model. Raises InputError if it cannot carry its state from segment to segment."""
        model = super().build_model(cfg, from_checkpoint)
        if not isinstance(model, LunaLanguageModel):
            raise InputError(
                "--task streaming_lm needs the model luna_lm. Use --arch luna_lm or one of its variants."
            )
        for name in ("decoder_layerdrop", "checkpoint_activations"):
            if getattr(cfg, name, None):
                raise InputError(
                    f"--{name.replace('_', '-')} does not work with --task streaming_lm, which passes the "
                    "state of every layer to the next segment. Remove the option."
                )
        self.has_positions = model.decoder.embed_positions is not None
        return model

    def max_positions(self) -> None:
        """Return None, so that fairseq does not limit the length of the text."""
        return None

    def build_generator(
        self, models: Any, args: Any, *more: Any, extra_gen_cls_kwargs: Any = None, **kwargs: Any
    ) -> Any:
        """Build a search whose output is limited by --max-len-b and by learned positions alone."""
        options = extra_gen_cls_kwargs or {}
        if not any(isinstance(model.decoder.embed_positions, LearnedPositions) for model in models):
            options = {"max_len": sys.maxsize, **options}
        return super().build_generator(models, args, *more, extra_gen_cls_kwargs=options, **kwargs)

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Load a data split and divide it into parallel streams of text.

        Each process has ``--batch-size`` streams, or ``--batch-size-valid`` outside training. In training,
        each segment is preceded by ``--bptt-segments`` earlier segments. With ``combine``, the numbered files
        of the split, such as train1, are loaded as well.
        """
        options, dictionary = self.args, self.source_dictionary
        path = Path(options.data) / split
        text = read_indexed(path, dictionary, combine)
        is_training = split == options.train_subset
        num_streams = (options.batch_size if is_training else options.batch_size_valid) or 1
        total_streams = num_streams * get_global_world_size()
        first_stream = num_streams * get_global_rank()
        dataset = StreamDataset(
            text,
            num_streams,
            options.segment_length,
            dictionary.pad(),
            dictionary.eos(),
            options.bptt_segments if is_training else 0,
            total_streams,
            first_stream,
            every_token=not is_training,
        )
        if not dataset.stream_length:
            raise InputError(
                f"{path} has fewer tokens than streams ({total_streams}). Use a smaller --batch-size."
            )
        logger.info(
            f"{split}: {total_streams} streams of {dataset.stream_length:,} tokens, {len(dataset):,} segments"
        )
        if self.has_positions and is_training:
            logger.warning(
                f"positions are counted from the beginning of a stream, up to {dataset.stream_length:,}. The "
                "model will predict longer texts badly. Use --no-token-positional-embeddings and "
                "--causal-decay."
            )
        self.datasets[split] = dataset

    def get_batch_iterator(self, dataset: Any, **kwargs: Any) -> Any:
        """Return an iterator over the segments of the text in order.

        ``max_sentences`` must be the batch size for which the dataset was loaded. Other limits on the batch
        size, such as ``--max-tokens``, have no effect. If the dataset is not a :class:`StreamDataset`, as in
        fairseq-interactive, return fairseq's own iterator, with no limit on the length of a sentence.
        """
        if not isinstance(dataset, StreamDataset):
            return super().get_batch_iterator(dataset, **{**kwargs, "max_positions": None})
        batch_size = kwargs.get("max_sentences")
        if batch_size is not None and batch_size != dataset.num_streams:
            raise InputError(
                f"--batch-size {batch_size} differs from the {dataset.num_streams} streams of the text. Also "
                f"use --batch-size-valid {batch_size}."
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
        """Return the batches that fairseq-eval-lm scores, in order. ``context_window`` must be 0."""
        if context_window:
            raise InputError(
                "--task streaming_lm has the whole earlier text as context. Remove --context-window."
            )
        batches = self.get_batch_iterator(dataset, num_workers=kwargs.get("num_workers", 0))
        return batches.next_epoch_itr(shuffle=False)
