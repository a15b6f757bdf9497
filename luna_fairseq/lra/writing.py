"""Writes examples as the data that the tasks of Long Range Arena read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence, Tuple

import numpy as np
import torch

from fairseq.data import Dictionary, indexed_dataset
from luna_fairseq.lra.task import LABEL, SECOND_SOURCE, SOURCE

SPLITS = ("train", "valid", "test")
# Split -> class -> number of examples.
Counts = Dict[str, Dict[int, int]]


def write_tokens(
    folder: Path,
    symbols: Sequence[str],
    classes: int,
    examples: Iterable[Tuple[str, Sequence[Sequence[int]], int]],
    pairs: bool = False,
) -> Counts:
    """Write binarised sequences as fairseq-preprocess would, with an end-of-sentence symbol after each.

    Args:
        folder: to write to, made if need be.
        symbols: the vocabulary.
        classes: the labels are 0 to ``classes`` - 1.
        examples: split, one sequence of places in ``symbols`` (two for pairs), and label.
        pairs: whether examples have two sequences.
    """
    vocabulary, labels = _dictionary(symbols), _dictionary([str(label) for label in range(classes)])
    folders = {SOURCE: vocabulary, **({SECOND_SOURCE: vocabulary} if pairs else {}), LABEL: labels}
    builders: Dict[Tuple[str, str], Any] = {}
    for name, dictionary in folders.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        dictionary.save(str(folder / name / "dict.txt"))
        for split in SPLITS:
            path = indexed_dataset.data_file_path(str(folder / name / split))
            builders[name, split] = indexed_dataset.make_builder(
                path, impl="mmap", vocab_size=len(dictionary)
            )
    counts: Counter = Counter()
    for split, sequences, label in examples:
        for (name, dictionary), places in zip(folders.items(), [*sequences, [label]]):
            tokens = torch.empty(len(places) + 1, dtype=torch.int)
            tokens[:-1] = torch.as_tensor(places, dtype=torch.int) + dictionary.nspecial
            tokens[-1] = dictionary.eos()
            builders[name, split].add_item(tokens)
        counts[split, label] += 1
    for (name, split), builder in builders.items():
        builder.finalize(indexed_dataset.index_file_path(str(folder / name / split)))
    return _by_split(counts, classes)


def _dictionary(symbols: Iterable[str]) -> Dictionary:
    dictionary = Dictionary()
    for symbol in symbols:
        dictionary.add_symbol(symbol)
    return dictionary


def write_images(folder: Path, classes: int, examples: Iterable[Tuple[str, np.ndarray, int]]) -> Counts:
    """Write ``input/SPLIT.npy`` and ``label/SPLIT.label``.

    Args:
        folder: to write to, made if need be.
        classes: the labels are 0 to ``classes`` - 1.
        examples: split, intensities of one image (uint8, any shape), and label; all images of one size.
    """
    for name in ("input", "label"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    raw = {split: folder / "input" / f"{split}.raw" for split in SPLITS}
    files = {split: path.open("wb") for split, path in raw.items()}
    labels: Dict[str, List[int]] = {split: [] for split in SPLITS}
    pixels = 0
    for split, image, label in examples:
        pixels = image.size
        files[split].write(np.ascontiguousarray(image).tobytes())
        labels[split].append(label)
    for split, path in raw.items():
        files[split].close()
        lines = "".join(f"{label}\n" for label in labels[split])
        (folder / "label" / f"{split}.label").write_text(lines, encoding="ascii")
        if labels[split]:
            rows = np.memmap(str(path), dtype=np.uint8, mode="r", shape=(len(labels[split]), pixels))
            np.save(str(path.with_suffix(".npy")), rows)
        path.unlink()
    return _by_split(Counter((split, label) for split in SPLITS for label in labels[split]), classes)


def _by_split(counts: Counter, classes: int) -> Counts:
    return {split: {label: counts[split, label] for label in range(classes)} for split in SPLITS}
