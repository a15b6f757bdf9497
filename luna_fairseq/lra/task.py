"""fairseq tasks of Long Range Arena: classification of token sequences, of pairs, and of images as pixels."""

import logging
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
from omegaconf import II, MISSING

from fairseq.data import (
    AppendTokenDataset,
    ConcatSentencesDataset,
    Dictionary,
    FairseqDataset,
    IdDataset,
    NestedDictionaryDataset,
    NumelDataset,
    NumSamplesDataset,
    OffsetTokensDataset,
    PrependTokenDataset,
    RawLabelDataset,
    RightPadDataset,
    SortDataset,
    StripTokenDataset,
    data_utils,
)
from fairseq.data.shorten_dataset import TruncateDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask, register_task
from luna_fairseq.checks.bounds import SEED
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import check_files
from luna_fairseq.lra.layout import LABEL, SECOND_SOURCE, SOURCE
from luna_fairseq.lra.pixels import (
    INTENSITIES,
    PixelSequenceDataset,
    PixelTokenDataset,
    read_labels,
    read_pixels,
)
from luna_fairseq.models.luna import flat_options
from luna_fairseq.models.luna_classifier_config import LunaClassifierConfig
from luna_fairseq.models.options import option
from luna_fairseq.text.indexed import read_indexed

logger = logging.getLogger(__name__)

CLS = "<CLS>"


@dataclass
class LRAConfig(FairseqDataclass):
    """Options of all Long Range Arena tasks."""

    data: str = option(MISSING, "folder of the data")
    no_shuffle: bool = option(False, "train on the sequences in the order of the files")
    seed: int = field(default=II("common.seed"), metadata=SEED)


@dataclass
class LRAImageConfig(LRAConfig):
    """Options of ``--task lra-image``, the classification of images as sequences of intensities."""

    pixel_normalization: Optional[List[float]] = option(
        None,
        "mean and standard deviation of the intensities, scaled to numbers between 0 and 1 (default: "
        "0.5,0.5)",
        least=0,
        most=1,
    )


class LRATask(FairseqTask):
    """Base class of the Long Range Arena tasks, in which each example belongs to one class.

    Call :meth:`build_model` before :meth:`load_dataset`, which needs three model options: the maximum length,
    the number of classes, and whether ``<CLS>`` is prepended.

    Attributes:
        pairs: True if an example is a pair of sequences.
        model_options: model options, set by :meth:`build_model`.
    """

    pairs = False
    source_dictionary: Optional[Dictionary] = None
    target_dictionary: Optional[Dictionary] = None

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        self.model_options = Namespace(**vars(LunaClassifierConfig()))

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model, and store its options for :meth:`load_dataset`."""
        self.model_options = Namespace(**flat_options(cfg, LunaClassifierConfig()))
        return super().build_model(cfg, from_checkpoint)

    def max_positions(self) -> int:
        """Return the maximum sequence length, in tokens for text and in pixels for images."""
        return self.model_options.max_positions

    @property
    def prepends_cls(self) -> bool:
        """True if the model classifies sequences by its output at ``<CLS>``, which is then prepended."""
        return self.model_options.sen_rep_type == "cls" and not self.model_options.use_p

    def store_dataset(self, split: str, fields: Dict[str, Any], sizes: np.ndarray) -> None:
        """Build a split's dataset, shuffled unless ``--no-shuffle`` is set, and add it to ``self.datasets``.

        Args:
            split: name of the split.
            fields: nested dictionary of datasets. The keys are the field names of a batch.
            sizes: lengths [N] of the N examples.
        """
        fields = {"id": IdDataset(), "nsentences": NumSamplesDataset(), **fields}
        dataset: FairseqDataset = NestedDictionaryDataset(fields, sizes=[sizes])
        if not self.cfg.no_shuffle:
            with data_utils.numpy_seed(self.cfg.seed):
                order = np.random.permutation(len(dataset))
            dataset = SortDataset(dataset, sort_order=[order])
        logger.info(f"{split}: {len(dataset):,} examples")
        self.datasets[split] = dataset

    def prepare_tokens(self, split: str, dataset: FairseqDataset, dictionary: Dictionary) -> FairseqDataset:
        """Prepend ``<CLS>`` to token sequences if the model needs it, and truncate long sequences."""
        if self.prepends_cls:
            dataset = PrependTokenDataset(dataset, dictionary.index(CLS))
        too_long = int((dataset.sizes > self.max_positions()).sum())
        if too_long:
            logger.warning(
                f"{split}: {too_long:,} of {len(dataset):,} sequences are cut to the model's "
                f"{self.max_positions():,} tokens (--max-positions), the longest of {max(dataset.sizes):,}"
            )
        return TruncateDataset(dataset, self.max_positions())

    def read_images(self, split: str) -> Tuple[np.ndarray, List[int]]:
        """Read the images of a split, uint8 [N, T] for N images of T pixels, and their N labels."""
        folder, classes = Path(self.cfg.data), self.model_options.sentence_class_num
        # Compares the checksums of all files of the split, including the images.
        check_files(folder / "label" / f"{split}.label")
        pixels = read_pixels(folder / "input" / split)
        labels = read_labels(folder / "label" / f"{split}.label", classes)
        if len(labels) != len(pixels):
            raise InputError(
                f"{folder}: the split {split!r} has {len(pixels):,} images, but {len(labels):,} labels"
            )
        # Pathfinder and CIFAR-10 have images of the same size, so a model of the wrong task could read them.
        if labels and max(labels) + 1 < classes:
            logger.warning(
                f"{split}: the largest label is {max(labels)}, but the model has {classes} classes "
                "(--sentence-class-num). Check that the model was trained on this task"
            )
        return pixels, labels

    def store_images(self, split: str, source: FairseqDataset, labels: List[int]) -> None:
        """Add a split with the pixels ``source`` of N images and their labels to ``self.datasets``."""
        net_input = {"src_tokens": source, "src_lengths": NumelDataset(source, reduce=False)}
        ntokens = NumelDataset(source, reduce=True)
        fields = {"net_input": net_input, "target": RawLabelDataset(labels), "ntokens": ntokens}
        self.store_dataset(split, fields, source.sizes)


@register_task("lra-text", dataclass=LRAConfig)
class LRATextTask(LRATask):
    """Classification task for token sequences or pairs of token sequences.

    The data folder contains ``src-bin``, ``label-bin`` and, for pairs, ``src1-bin``, which luna-prepare-lra
    or fairseq-preprocess writes. ``<CLS>`` is the last entry of the dictionary.
    """

    def __init__(self, cfg: Any, dictionary: Dictionary, label_dictionary: Dictionary):
        super().__init__(cfg)
        self.dictionary = self.source_dictionary = dictionary
        self.label_dictionary = label_dictionary
        self.pairs = (Path(cfg.data) / SECOND_SOURCE).is_dir()

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> LRATask:
        """Load the dictionaries and create the task, or a task for pixels if the data folder has images."""
        if (Path(cfg.data) / "input").is_dir() and not (Path(cfg.data) / SOURCE).exists():
            logger.info(f"{cfg.data} contains images, whose pixels are read as tokens")
            return LRAPixelTokensTask(cfg)
        dictionaries = {}
        for name in (SOURCE, LABEL):
            path = Path(cfg.data) / name / "dict.txt"
            if not path.is_file():
                raise InputError(
                    f"{path} does not exist. Give a folder that luna-prepare-lra or fairseq-preprocess made."
                )
            dictionaries[name] = Dictionary.load(str(path))
        dictionaries[SOURCE].add_symbol(CLS)
        logger.info(f"dictionary: {len(dictionaries[SOURCE]):,} types")
        return cls(cfg, dictionaries[SOURCE], dictionaries[LABEL])

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Load the sequences and labels of a split and, with ``combine``, of its parts such as ``train1``."""
        folder, folders = Path(self.cfg.data), [SOURCE, SECOND_SOURCE] if self.pairs else [SOURCE]
        texts = [read_indexed(folder / name / split, self.dictionary, combine) for name in folders]
        sources = [self.prepare_tokens(split, text, self.dictionary) for text in texts]
        labels = read_indexed(folder / LABEL / split, self.label_dictionary, combine)
        if any(len(source) != len(labels) for source in sources):
            counts = zip([*folders, LABEL], map(len, [*sources, labels]))
            found = ", ".join(f"{folder / name / split} {count:,}" for name, count in counts)
            raise InputError(f"every example needs one entry in each of these files, but they have: {found}")
        self._check_labels(split, labels)
        net_input: Dict[str, Any] = {}
        for name, source in zip(("src", "src1"), sources):
            net_input[f"{name}_tokens"] = RightPadDataset(source, pad_idx=self.dictionary.pad())
            net_input[f"{name}_lengths"] = NumelDataset(source, reduce=False)
        target = OffsetTokensDataset(
            StripTokenDataset(labels, id_to_strip=self.label_dictionary.eos()),
            offset=-self.label_dictionary.nspecial,
        )
        sizes = np.max([source.sizes for source in sources], axis=0)
        tokens = ConcatSentencesDataset(*sources) if self.pairs else sources[0]
        fields = {"net_input": net_input, "target": target, "ntokens": NumelDataset(tokens, reduce=True)}
        self.store_dataset(split, fields, sizes)

    def _check_labels(self, split: str, labels: FairseqDataset) -> None:
        """Raise InputError unless each example has exactly one label, which is a class of the model."""
        first, eos = self.label_dictionary.nspecial, self.label_dictionary.eos()
        for number in range(len(labels)):
            label = [token for token in labels[number].tolist() if token != eos]
            if len(label) != 1 or not 0 <= label[0] - first < self.model_options.sentence_class_num:
                raise InputError(
                    f"{Path(self.cfg.data) / LABEL / split}, line {number + 1}: label "
                    f"{' '.join(self.label_dictionary[token] for token in label)!r}, expected one of the "
                    f"{self.model_options.sentence_class_num} classes (--sentence-class-num)"
                )


@register_task("long_range_arena", dataclass=LRAConfig)
class LongRangeArenaTask(LRATextTask):
    """Alias of the ``lra-text`` task under the name that the Luna authors' commands use."""


class LRAPixelTokensTask(LRATask):
    """Task of ``--task lra-text`` for images, which are sequences of the tokens ``0`` to ``255``.

    The benchmark and the release of Luna's authors read images in this way. The files are those of
    :class:`LRAImageTask`.
    """

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        self.dictionary = self.source_dictionary = Dictionary()
        for symbol in [*map(str, range(INTENSITIES)), CLS]:
            self.dictionary.add_symbol(symbol)

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Load the images and labels of a split. ``combine`` is ignored, because a split is a single file."""
        pixels, labels = self.read_images(split)
        images = PixelTokenDataset(pixels, offset=self.dictionary.nspecial)
        tokens = AppendTokenDataset(images, self.dictionary.eos())
        source = self.prepare_tokens(split, tokens, self.dictionary)
        self.store_images(split, RightPadDataset(source, pad_idx=self.dictionary.pad()), labels)


@register_task("lra-image", dataclass=LRAImageConfig)
class LRAImageTask(LRATask):
    """Classification task for images, represented as sequences of grayscale intensities.

    The data folder contains the images in ``input/SPLIT.npy`` or the text file ``input/SPLIT.src``, and the
    labels in ``label/SPLIT.label``.
    """

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "LRAImageTask":
        """Create the task. ``--pixel-normalization`` must be a mean and a positive standard deviation."""
        normalization = cfg.pixel_normalization
        if normalization is not None and (len(normalization) != 2 or normalization[1] <= 0):
            raise InputError(
                f"--pixel-normalization {','.join(map(str, normalization))}: expected a mean and a standard "
                "deviation above 0, such as 0.5,0.5"
            )
        return cls(cfg)

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Load the images and labels of a split. ``combine`` is ignored, because a split is a single file."""
        pixels, labels = self.read_images(split)
        longest = self.max_positions() - self.prepends_cls
        if pixels.shape[1] > longest:
            path = Path(self.cfg.data) / "input" / split
            raise InputError(
                f"{path}: images of {pixels.shape[1]:,} pixels, but the model reads at most {longest:,}. "
                "Choose an architecture for that size, or give --max-positions."
            )
        self.store_images(split, PixelSequenceDataset(pixels, *(self.cfg.pixel_normalization or ())), labels)
