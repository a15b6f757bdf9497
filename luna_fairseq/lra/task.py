"""Tasks of Long Range Arena: a class for each sequence of tokens, pair of such sequences, or sequence of
pixels."""

import logging
from argparse import Namespace
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np
from omegaconf import II, MISSING

from fairseq.data import (
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
from luna_fairseq.lra.pixels import PixelSequenceDataset, read_labels, read_pixels
from luna_fairseq.models.luna import flat_options
from luna_fairseq.models.luna_classifier_config import LunaClassifierConfig
from luna_fairseq.models.options import option
from luna_fairseq.text.indexed import read_indexed

logger = logging.getLogger(__name__)

SOURCE, SECOND_SOURCE, LABEL = "src-bin", "src1-bin", "label-bin"
CLS = "<CLS>"


@dataclass
class LRAConfig(FairseqDataclass):
    """Options of every task of Long Range Arena."""

    data: str = option(MISSING, "folder of the data")
    no_shuffle: bool = option(False, "train on the sequences in their order")
    seed: int = field(default=II("common.seed"), metadata=SEED)


@dataclass
class LRAImageConfig(LRAConfig):
    """Options of ``--task lra-image``."""

    pixel_normalization: Optional[List[float]] = option(
        None, "mean and standard deviation of intensities between 0 and 1 (default: 0.5,0.5)", least=0, most=1
    )


class LRATask(FairseqTask):
    """What both tasks share: one class for each example. Data is read as the model wants it, so that is built
    first."""

    pairs = False
    source_dictionary: Optional[Dictionary] = None
    target_dictionary: Optional[Dictionary] = None

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        self.model_options = Namespace(**vars(LunaClassifierConfig()))

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """The model of ``cfg``, whose options decide how data is read from then on."""
        self.model_options = Namespace(**flat_options(cfg, LunaClassifierConfig()))
        return super().build_model(cfg, from_checkpoint)

    def max_positions(self) -> int:
        return self.model_options.max_positions

    @property
    def prepends_cls(self) -> bool:
        """Whether a sequence is represented by what comes first, and so gets something put there."""
        return self.model_options.sen_rep_type == "cls" and not self.model_options.use_p

    def keep_dataset(self, split: str, definition: Dict[str, Any], sizes: np.ndarray) -> None:
        """Make ``definition`` with sizes [N] the dataset ``split``, in an order that the seed gives."""
        definition = {"id": IdDataset(), "nsentences": NumSamplesDataset(), **definition}
        dataset: FairseqDataset = NestedDictionaryDataset(definition, sizes=[sizes])
        if not self.cfg.no_shuffle:
            with data_utils.numpy_seed(self.cfg.seed):
                order = np.random.permutation(len(dataset))
            dataset = SortDataset(dataset, sort_order=[order])
        logger.info(f"{split}: {len(dataset):,} examples")
        self.datasets[split] = dataset


@register_task("lra-text", dataclass=LRAConfig)
class LRATextTask(LRATask):
    """Sequences of tokens, or pairs of them.

    The data has the layout of the authors' code: folders ``src-bin`` and ``label-bin``, made by
    fairseq-preprocess or by luna-prepare-lra; with ``src1-bin`` there are pairs.

    Args:
        cfg: a :class:`LRAConfig`
        dictionary: of the tokens, ``<CLS>`` last
        label_dictionary: of the classes
    """

    def __init__(self, cfg: Any, dictionary: Dictionary, label_dictionary: Dictionary):
        super().__init__(cfg)
        self.dictionary = self.source_dictionary = dictionary
        self.label_dictionary = label_dictionary
        self.pairs = (Path(cfg.data) / SECOND_SOURCE).is_dir()

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> LRATask:
        """Read the dictionaries; of a folder of images, the task that reads them. Raises InputError where a
        dictionary is missing."""
        if (Path(cfg.data) / "input").is_dir() and not (Path(cfg.data) / SOURCE).exists():
            logger.info(f"{cfg.data} holds images: they are read as --task lra-image reads them")
            images = LRAImageConfig(data=cfg.data, no_shuffle=cfg.no_shuffle, seed=cfg.seed)
            return LRAImagesByTextTask(images)
        dictionaries = {}
        for name in (SOURCE, LABEL):
            path = Path(cfg.data) / name / "dict.txt"
            if not path.is_file():
                raise InputError(
                    f"{path} does not exist: is this a folder that luna-prepare-lra or fairseq-preprocess "
                    "made?"
                )
            dictionaries[name] = Dictionary.load(str(path))
        dictionaries[SOURCE].add_symbol(CLS)
        logger.info(f"dictionary: {len(dictionaries[SOURCE]):,} types")
        return cls(cfg, dictionaries[SOURCE], dictionaries[LABEL])

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Load train, valid or test. Raises InputError where files are missing, have different numbers of
        examples, or hold a label that is no class."""
        folder, folders = Path(self.cfg.data), [SOURCE, SECOND_SOURCE] if self.pairs else [SOURCE]
        sources = [self._sequences(folder / one / split, combine) for one in folders]
        labels = read_indexed(folder / LABEL / split, self.label_dictionary, combine)
        if any(len(source) != len(labels) for source in sources):
            counts = zip([*folders, LABEL], map(len, [*sources, labels]))
            found = ", ".join(f"{folder / one / split} {count:,}" for one, count in counts)
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
        definition = {"net_input": net_input, "target": target, "ntokens": NumelDataset(tokens, reduce=True)}
        self.keep_dataset(split, definition, sizes)

    def _sequences(self, path: Path, combine: bool) -> FairseqDataset:
        """As the model reads them: with ``<CLS>``, and cut."""
        dataset = read_indexed(path, self.dictionary, combine)
        if self.prepends_cls:
            dataset = PrependTokenDataset(dataset, self.dictionary.index(CLS))
        too_long = int((dataset.sizes > self.max_positions()).sum())
        if too_long:
            logger.warning(
                f"{path.name}: {too_long:,} of {len(dataset):,} sequences are cut to the model's "
                f"{self.max_positions():,} tokens (--max-positions), the longest of {max(dataset.sizes):,}"
            )
        return TruncateDataset(dataset, self.max_positions())

    def _check_labels(self, split: str, labels: FairseqDataset) -> None:
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
    """The name that the authors' commands have for ``lra-text``."""


@register_task("lra-image", dataclass=LRAImageConfig)
class LRAImageTask(LRATask):
    """Images as sequences of gray pixels: ``input/SPLIT.npy`` (or ``.src``, as text) and
    ``label/SPLIT.label``.

    Args:
        cfg: a :class:`LRAImageConfig`
    """

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "LRAImageTask":
        """Raises InputError for a normalisation that cannot be."""
        normalization = cfg.pixel_normalization
        if normalization is not None and (len(normalization) != 2 or normalization[1] <= 0):
            raise InputError(
                f"--pixel-normalization {','.join(map(str, normalization))}: expected a mean and a standard "
                "deviation above 0, as 0.5,0.5"
            )
        return cls(cfg)

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Load train, valid or test. Raises InputError where a file is missing, an image is of the wrong
        size, or a label is no class."""
        folder = Path(self.cfg.data)
        check_files(folder / "label" / f"{split}.label")  # and the images
        pixels = read_pixels(folder / "input" / split)
        labels = read_labels(folder / "label" / f"{split}.label", self.model_options.sentence_class_num)
        if len(labels) != len(pixels):
            raise InputError(
                f"{folder}: the split {split!r} has {len(pixels):,} images, but {len(labels):,} labels"
            )
        classes = self.model_options.sentence_class_num
        if labels and max(labels) + 1 < classes:  # CIFAR-10's model would read Pathfinder's images, too
            logger.warning(
                f"{split}: labels go up to {max(labels)}, and the model has {classes} classes: see to it "
                "that it was trained on this task (--sentence-class-num)"
            )
        longest = self.max_positions() - self.prepends_cls
        if pixels.shape[1] > longest:
            raise InputError(
                f"{folder / 'input' / split}: images of {pixels.shape[1]:,} pixels, the model takes "
                f"{longest:,}: choose the architecture of that size, or give --max-positions"
            )
        source = PixelSequenceDataset(pixels, *(self.cfg.pixel_normalization or ()))
        net_input = {"src_tokens": source, "src_lengths": NumelDataset(source, reduce=False)}
        ntokens = NumelDataset(source, reduce=True)
        definition = {"net_input": net_input, "target": RawLabelDataset(labels), "ntokens": ntokens}
        self.keep_dataset(split, definition, source.sizes)


class LRAImagesByTextTask(LRAImageTask):
    """Images read by a command of the authors' README, which says ``--task lra-text --input-type text`` for
    them too."""

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """The model of ``cfg``, for pixels."""
        cfg = copy(cfg)
        cfg.input_type = "image"
        return super().build_model(cfg, from_checkpoint)
