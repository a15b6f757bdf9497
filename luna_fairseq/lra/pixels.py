"""Images as sequences of gray pixels, with a class each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List

import numpy as np
import torch
from torch import Tensor

from fairseq.data import FairseqDataset
from luna_fairseq.errors import InputError
from luna_fairseq.requirements import import_package

INTENSITIES = 256


class PixelSequenceDataset(FairseqDataset):
    """Standardised pixels of images, row after row.

    Args:
        pixels: intensities 0..255 [N, T]
        mean, std: of the intensities scaled to 0..1, subtracted and divided by
    """

    def __init__(self, pixels: np.ndarray, mean: float = 0.5, std: float = 0.5):
        super().__init__()
        self.pixels, self.mean, self.std = pixels, mean, std
        self.sizes = np.full(len(pixels), pixels.shape[1])

    def __getitem__(self, index: int) -> Tensor:
        """float32 [T]."""
        scaled = self.pixels[index].astype(np.float32) / (INTENSITIES - 1)
        return torch.from_numpy((scaled - self.mean) / self.std)

    def __len__(self) -> int:
        return len(self.pixels)

    def collater(self, samples: List[Tensor]) -> Tensor:
        """[B, T]."""
        return torch.stack(samples)


def pillow() -> Any:
    """Import Pillow, which draws and reads images. Raises MissingRequirementError if it is not installed."""
    import_package("PIL.ImageDraw", "reading and drawing images")
    return import_package("PIL")


def read_pixels(stem: Path) -> np.ndarray:
    """Intensities [N, T] from ``STEM.npy``, or else from ``STEM.src``, which has an image a line, as numbers.
    Raises InputError where there is neither file, or an image is of another size than the first, or no
    image at all."""
    binary, text = (stem.with_name(stem.name + suffix) for suffix in (".npy", ".src"))
    if binary.is_file():
        return _read_binary(binary)
    if text.is_file():
        return _read_text(text)
    raise InputError(
        f"there is neither {binary} nor {text.name} beside it: is this a folder that luna-prepare-lra made?"
    )


def _read_binary(path: Path) -> np.ndarray:
    try:
        pixels = np.load(str(path), mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{path} cannot be read as an array of numpy: {error}") from error
    if pixels.ndim != 2 or pixels.dtype != np.uint8 or not pixels.size:
        raise InputError(
            f"{path} holds {pixels.dtype} of shape {pixels.shape}: expected uint8 of shape (images, pixels)"
        )
    return pixels


def _read_text(path: Path) -> np.ndarray:
    rows: List[np.ndarray] = []
    with path.open(encoding="ascii", errors="replace") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            if not all(word.isascii() and word.isdigit() and int(word) < INTENSITIES for word in words):
                raise InputError(
                    f"{path}, line {number}: expected intensities from 0 to 255, separated by spaces"
                )
            expected = len(rows[0]) if rows else len(words)
            if len(words) != expected or not expected:
                raise InputError(
                    f"{path}, line {number}: an image of {len(words)} pixels, expected "
                    f"{expected or 'at least one'}"
                )
            rows.append(np.array(words, dtype=np.uint8))
    if not rows:
        raise InputError(f"{path} has no images")
    return np.stack(rows)


def read_labels(path: Path, classes: int) -> List[int]:
    """The classes in a file, one number a line. Raises InputError where the file is missing, or a line holds
    something else than a number below ``classes``."""
    if not path.is_file():
        raise InputError(f"{path} does not exist: is this a folder that luna-prepare-lra made?")
    labels = []
    with path.open(encoding="ascii", errors="replace") as file:
        for number, line in enumerate(file, 1):
            word = line.strip()
            if not (word.isascii() and word.isdigit() and int(word) < classes):
                raise InputError(
                    f"{path}, line {number}: label {word!r}, expected a class from 0 to {classes - 1} "
                    "(--sentence-class-num)"
                )
            labels.append(int(word))
    return labels
