"""``--task streaming_masked_lm``: masked language modelling of contiguous text, by a model that carries P."""

from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairseq.data import MaskTokensDataset
from fairseq.tasks import register_task
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from luna_fairseq.errors import InputError
from luna_fairseq.models.carried_packed import PackedStream, check_segments
from luna_fairseq.models.luna import flat_options
from luna_fairseq.models.luna_masked_lm_config import LunaMaskedLMConfig
from luna_fairseq.streaming.base_task import RowOptions, StreamingTask, check_text
from luna_fairseq.streaming.streams import MaskedStreamDataset


@dataclass
class StreamingMaskedLMConfig(MaskedLMConfig, RowOptions):
    """Those of ``--task masked_lm``; how long segments are is the model's --segment-length."""


@register_task("streaming_masked_lm", dataclass=StreamingMaskedLMConfig)
class StreamingMaskedLMTask(StreamingTask, MaskedLMTask):
    """Masked language modelling of the data of ``--task masked_lm``, each row of a batch a stream. Masks
    depend on seed, epoch and segment alone.

    Args:
        cfg: a :class:`StreamingMaskedLMConfig`
        dictionary: of the text
    """

    new_stream = PackedStream
    model_options: Any = None

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "StreamingMaskedLMTask":
        """Raises InputError where there is no dictionary, and for words as wholes, which segments may cut."""
        check_text(cfg.data)
        if cfg.mask_whole_words:
            raise InputError("--mask-whole-words: a segment may end within a word, leave it out")
        return super().setup_task(cfg, **kwargs)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """fairseq's. Raises InputError for a model that does not carry P."""
        self.model_options = Namespace(**flat_options(cfg, LunaMaskedLMConfig()))
        if not self.model_options.carry_packed:
            raise InputError(
                "--task streaming_masked_lm is for models that carry P: give an architecture of "
                "luna_masked_lm and --carry-packed"
            )
        check_segments(self.model_options)
        return super().build_model(cfg, from_checkpoint)

    def max_positions(self) -> Any:
        return self.model_options and self.model_options.segment_length

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Load train, valid or test. Raises InputError where the file is missing, or has fewer tokens than
        there are rows."""
        streams, k = partial(MaskedStreamDataset, mask=self.mask), self.model_options.bptt_segments
        lengths = self.model_options.segment_length, 1 if k is None else k
        self.datasets[split] = self.read_streams(streams, split, combine, *lengths)

    def mask(self, segments: Any, targets: bool) -> MaskTokensDataset:
        """``segments`` with masks, or the tokens that were masked (padding elsewhere)."""
        names = ("seed", "mask_prob", "leave_unmasked_prob", "random_token_prob", "freq_weighted_replacement")
        options = {name: getattr(self.cfg, name) for name in (*names, "mask_multiple_length", "mask_stdev")}
        dictionary = self.source_dictionary
        # Not its apply_mask, whose caches keep a segment's masks for the next epoch.
        return MaskTokensDataset(segments, dictionary, dictionary.pad(), self.mask_idx, targets, **options)
