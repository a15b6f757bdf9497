"""Functions that write data folders for the Long Range Arena tasks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence, Tuple

import numpy as np
import torch

from fairseq.data import Dictionary, indexed_dataset
from luna_fairseq.lra.layout import LABEL, SECOND_SOURCE, SOURCE, SPLITS, Counts


def write_tokens(
    folder: Path,
    symbols: Sequence[str],
    classes: int,
    examples: Iterable[Tuple[str, Sequence[Sequence[int]], int]],
    pairs: bool = False,
) -> Counts:
    """Write token sequences and their labels in the binary format of fairseq-preprocess.

    Return the number of examples per split and class.

    Args:
        folder: folder to write to.
        symbols: vocabulary.
        classes: number of classes. Labels are integers from 0 to ``classes`` - 1.
        examples: tuples (split, sequences, label). ``sequences`` has one sequence of indices into
            ``symbols``, or two for pairs. An end-of-sentence symbol is appended to each sequence.
        pairs: True if each example is a pair of sequences.
    """
    vocabulary, labels = (
        _build_dictionary(symbols),
        _build_dictionary([str(label) for label in range(classes)]),
    )
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
        for (name, dictionary), indices in zip(folders.items(), [*sequences, [label]]):
            tokens = torch.empty(len(indices) + 1, dtype=torch.int)
            tokens[:-1] = torch.as_tensor(indices, dtype=torch.int) + dictionary.nspecial
            tokens[-1] = dictionary.eos()
            builders[name, split].add_item(tokens)
        counts[split, label] += 1
    for (name, split), builder in builders.items():
        builder.finalize(indexed_dataset.index_file_path(str(folder / name / split)))
    return _group_by_split(counts, classes)


def _build_dictionary(symbols: Iterable[str]) -> Dictionary:
    """Build a fairseq dictionary that contains fairseq's special symbols, then the given symbols."""
    dictionary = Dictionary()
    for symbol in symbols:
        dictionary.add_symbol(symbol)
    return dictionary


def write_images(folder: Path, classes: int, examples: Iterable[Tuple[str, np.ndarray, int]]) -> Counts:
    """Write images to ``input/SPLIT.npy`` and their labels to ``label/SPLIT.label``.

    ``examples`` are tuples (split, image, label). Images are uint8 arrays with the same number of pixels.
    Return the number of examples per split and class.
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
            images = np.memmap(str(path), dtype=np.uint8, mode="r", shape=(len(labels[split]), pixels))
            np.save(str(path.with_suffix(".npy")), images)
        path.unlink()
    return _group_by_split(Counter((split, label) for split in SPLITS for label in labels[split]), classes)


def _group_by_split(counts: Counter, classes: int) -> Counts:
    """Convert counts keyed by (split, class) to ``{split: {class: count}}``, with 0 for missing classes."""
    return {split: {label: counts[split, label] for label in range(classes)} for split in SPLITS}
