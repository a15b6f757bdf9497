"""Reader of grayscale images and their labels, and datasets of images as sequences of pixels."""

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
    """Dataset of N grayscale images of T pixels, uint8 [N, T], as normalized sequences.

    Intensities are scaled to the range from 0 to 1, and then normalized to ``(scaled - mean) / std``.
    """

    def __init__(self, pixels: np.ndarray, mean: float = 0.5, std: float = 0.5):
        super().__init__()
        self.pixels, self.mean, self.std = pixels, mean, std
        self.sizes = np.full(len(pixels), pixels.shape[1])

    def __getitem__(self, index: int) -> Tensor:
        """Return the normalized pixels of an image, float32 [T]."""
        scaled = self.pixels[index].astype(np.float32) / (INTENSITIES - 1)
        return torch.from_numpy((scaled - self.mean) / self.std)

    def __len__(self) -> int:
        return len(self.pixels)

    def collater(self, samples: List[Tensor]) -> Tensor:
        """Stack B images of T pixels into a batch [B, T]."""
        return torch.stack(samples)


class PixelTokenDataset(FairseqDataset):
    """Dataset of N grayscale images of T pixels, uint8 [N, T], as tokens: intensity plus ``offset``."""

    def __init__(self, pixels: np.ndarray, offset: int):
        super().__init__()
        self.pixels, self.offset = pixels, offset
        self.sizes = np.full(len(pixels), pixels.shape[1])

    def __getitem__(self, index: int) -> Tensor:
        """Return the tokens of an image, int64 [T]."""
        return torch.from_numpy(self.pixels[index].astype(np.int64) + self.offset)

    def __len__(self) -> int:
        return len(self.pixels)


def pillow() -> Any:
    """Import and return Pillow, the image library."""
    import_package("PIL.ImageDraw", "reading and drawing images")
    return import_package("PIL")


def read_pixels(stem: Path) -> np.ndarray:
    """Read the images of a split, uint8 [N, T] for N images of T pixels.

    ``STEM.npy`` is read if it exists. Otherwise ``STEM.src`` is read, a text file with one image per line.
    """
    binary, text = (stem.with_name(stem.name + suffix) for suffix in (".npy", ".src"))
    if binary.is_file():
        return _read_binary(binary)
    if text.is_file():
        return _read_text(text)
    raise InputError(
        f"{binary} does not exist, and neither does {text.name}. Give a folder that luna-prepare-lra made."
    )


def _read_binary(path: Path) -> np.ndarray:
    """Memory-map a .npy file of N images with T pixels, uint8 [N, T]. Raise InputError for other formats."""
    try:
        pixels = np.load(str(path), mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{path} cannot be read as a numpy array: {error}") from error
    if pixels.ndim != 2 or pixels.dtype != np.uint8 or not pixels.size:
        raise InputError(
            f"{path} holds {pixels.dtype} of shape {pixels.shape}: expected uint8 of shape (images, pixels)"
        )
    return pixels


def _read_text(path: Path) -> np.ndarray:
    """Read N images of T pixels, uint8 [N, T], from a text file with one line of intensities per image."""
    images: List[np.ndarray] = []
    with path.open(encoding="ascii", errors="replace") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            if not all(word.isascii() and word.isdigit() and int(word) < INTENSITIES for word in words):
                raise InputError(
                    f"{path}, line {number}: expected intensities from 0 to 255, separated by spaces"
                )
            expected = len(images[0]) if images else len(words)
            if len(words) != expected or not expected:
                raise InputError(
                    f"{path}, line {number}: an image of {len(words)} pixels, expected "
                    f"{expected or 'at least one'}"
                )
            images.append(np.array(words, dtype=np.uint8))
    if not images:
        raise InputError(f"{path} has no images. Give a folder that luna-prepare-lra made.")
    return np.stack(images)


def read_labels(path: Path, classes: int) -> List[int]:
    """Read the labels of images from a text file with one label from 0 to ``classes`` - 1 per line."""
    if not path.is_file():
        raise InputError(f"{path} does not exist. Give a folder that luna-prepare-lra made.")
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
