"""``--task streaming_lm``: language modelling of contiguous text."""

import logging
from dataclasses import dataclass
from typing import Any, Optional

from omegaconf import II, MISSING

from fairseq.data import Dictionary
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingTask
from luna_fairseq.errors import InputError
from luna_fairseq.models.carried_packed import check_segments
from luna_fairseq.models.luna_lm import LunaLanguageModel
from luna_fairseq.models.options import option
from luna_fairseq.models.stream import Stream
from luna_fairseq.streaming.base_task import RowOptions, StreamingTask, check_text
from luna_fairseq.streaming.streams import StreamDataset

logger = logging.getLogger(__name__)


@dataclass
class StreamingLMConfig(RowOptions):
    """Options of ``--task streaming_lm``."""

    data: str = option(MISSING, "folder of the data, as for language_modeling")
    segment_length: int = option(512, "tokens of each of the --batch-size rows that are read at once")
    bptt_segments: int = option(
        0,
        "earlier segments that gradients go through: they are read again with each (0: the state is taken as "
        "it is)",
    )
    # Where a table of learned positions ends; sinusoidal ones have no end.
    tokens_per_sample: int = II("task.segment_length")
    max_target_positions: Optional[int] = II("task.segment_length")


@register_task("streaming_lm", dataclass=StreamingLMConfig)
class StreamingLMTask(StreamingTask, LanguageModelingTask):
    """Language modelling of the data of ``--task language_modeling``, each row of a batch a stream.
    fairseq-eval-lm reads one row by default.

    Args:
        cfg: a :class:`StreamingLMConfig`
        dictionary: of the text
    """

    new_stream = Stream
    has_positions = False

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "StreamingLMTask":
        """Raises InputError for no dictionary, segments of no token, a negative number of segments."""
        check_segments(cfg)
        return cls(cfg, Dictionary.load(str(check_text(cfg.data))))

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
        self.has_positions = model.decoder.embed_positions is not None
        return model

    def max_positions(self) -> None:
        return None

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Load train, valid or test. Raises InputError where the file is missing, or has fewer tokens than
        there are rows."""
        lengths = self.args.segment_length, self.args.bptt_segments
        dataset = self.datasets[split] = self.read_streams(StreamDataset, split, combine, *lengths)
        if self.has_positions and split == self.args.train_subset:
            logger.warning(
                f"positions count from the beginning of a row, to {dataset.row_length:,}: a longer text will "
                "be read badly; give --no-token-positional-embeddings and --causal-decay"
            )

    def eval_lm_dataloader(self, dataset: Any, context_window: int = 0, **kwargs: Any) -> Any:
        """What fairseq-eval-lm reads. Raises InputError for a window: the whole past is read already."""
        if context_window:
            raise InputError("--context-window: --task streaming_lm remembers the whole text, leave it out")
        batches = self.get_batch_iterator(dataset, num_workers=kwargs.get("num_workers", 0))
        return batches.next_epoch_itr(shuffle=False)
