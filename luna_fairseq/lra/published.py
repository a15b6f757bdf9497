"""Readers of the published files of Long Range Arena: ListOps, Text, Retrieval, Image and Pathfinder."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from typing import IO, Dict, Iterator, List, Tuple

import numpy as np

from luna_fairseq.errors import InputError
from luna_fairseq.files.archive import read_members
from luna_fairseq.files.download import RemoteFile
from luna_fairseq.lra.listops import VOCABULARY, parse
from luna_fairseq.lra.pixels import pillow
from luna_fairseq.progress import say

STANFORD, TORONTO = "https://ai.stanford.edu/~amaas/data/sentiment", "https://www.cs.toronto.edu/~kriz"
IMDB = RemoteFile(f"{STANFORD}/aclImdb_v1.tar.gz", 84125825, "md5:7c2ac02c03563afcf9b574c7e56c153a")
CIFAR10 = RemoteFile(f"{TORONTO}/cifar-10-binary.tar.gz", 170052171, "md5:c32a1d4ab5d03f1284b67883e8d87530")
LRA_RELEASE = RemoteFile("https://storage.googleapis.com/long-range-arena/lra_release.gz", None)

LISTOPS_FILES = {"train": "basic_train.tsv", "valid": "basic_val.tsv", "test": "basic_test.tsv"}
AAN_FILES = {
    "new_aan_pairs.train.tsv": "train",
    "new_aan_pairs.eval.tsv": "valid",
    "new_aan_pairs.test.tsv": "test",
}
AAN_COLUMNS = ("label", "id1", "id2", "text1", "text2")
CIFAR10_SIDE, CIFAR10_CHANNELS = 32, 3
# Same as tf.image.rgb_to_grayscale for uint8: weighted sum, scaled to 256 values, rounded down.
GRAY_WEIGHTS, GRAY_SCALE = (0.2989, 0.587, 0.114), 255.5 / 255
PATHFINDER_LEVEL = "curv_contour_length_14"

TokenExample = Tuple[str, List[List[int]], int]
ImageExample = Tuple[str, np.ndarray, int]


def read_listops(folder: Path) -> Iterator[TokenExample]:
    """Yield tuples (split, [vocabulary indices], value) for the published ListOps expressions.

    ``folder`` contains ``basic_train.tsv``, ``basic_val.tsv`` and ``basic_test.tsv``. Raise InputError if a
    file does not exist, a line is malformed, or a stated value is not the value of its expression.
    """
    indices = {symbol: index for index, symbol in enumerate(VOCABULARY)}
    for split, name in LISTOPS_FILES.items():
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path} does not exist. Use --mirror with a folder that contains {name}.")
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                columns = line.rstrip("\r\n").split("\t")
                if number == 1 and columns == ["Source", "Target"]:
                    continue
                if len(columns) != 2:
                    raise InputError(
                        f"{path}, line {number}: {len(columns)} columns, expected an expression and its value"
                    )
                try:
                    tokens, value = parse(columns[0])
                except InputError as error:
                    raise InputError(f"{path}, line {number}: {error}") from None
                if columns[1] != str(value):
                    raise InputError(f"{path}, line {number}: value {columns[1]!r}, expected {value}")
                yield split, [[indices[token] for token in tokens]], value


def read_imdb(archive: Path, max_length: int) -> Iterator[TokenExample]:
    """Yield tuples (split, [bytes], label) for the IMDB reviews, truncated to ``max_length`` bytes.

    The label is 1 for a positive review. The test set is also the validation set, as in the published
    benchmark.
    """
    pattern = re.compile(r"(?:.*/)?(train|test)/(pos|neg)/[^/]+\.txt$")
    truncated: List[int] = []
    for name, content in read_members(archive):
        match = pattern.match(name)
        if match:
            text, label = _truncate(content.read(), max_length, truncated), int(match[2] == "pos")
            if not text:
                raise InputError(f"{archive}, {name}: the review is empty, expected text")
            for split in ("train",) if match[1] == "train" else ("valid", "test"):
                yield split, [text], label
    _report_truncated(truncated, max_length)


def read_aan(archive: Path, max_length: int) -> Iterator[TokenExample]:
    """Yield tuples (split, [bytes of each paper], label) for pairs of papers from the ACL Anthology Network.

    The papers are truncated to ``max_length`` bytes. The label is 1 if one paper cites the other.
    """
    truncated: List[int] = []
    for name, content in read_members(archive):
        split = AAN_FILES.get(name.rsplit("/", 1)[-1])
        if split is None:
            continue
        for number, line in enumerate(content, 1):
            where = f"{archive}, {name}, line {number}"
            columns = line.rstrip(b"\r\n").split(b"\t")
            if len(columns) != len(AAN_COLUMNS):
                raise InputError(f"{where}: {len(columns)} columns, expected {', '.join(AAN_COLUMNS)}")
            label, texts = columns[0], [_truncate(text, max_length, truncated) for text in columns[3:]]
            if label not in (b"0", b"1", b"0.0", b"1.0"):
                raise InputError(f"{where}: label {label.decode('ascii', 'replace')!r}, expected 0 or 1")
            for column, text in zip(AAN_COLUMNS[3:], texts):
                if not text:
                    raise InputError(f"{where}: {column} is empty, expected both texts of the pair")
            yield split, texts, int(float(label))
    _report_truncated(truncated, max_length)


def _truncate(text: bytes, max_length: int, truncated: List[int]) -> List[int]:
    """Return up to ``max_length`` bytes of a text. If the text is longer, add its length to ``truncated``."""
    if len(text) > max_length:
        truncated.append(len(text))
    return list(text[:max_length])


def _report_truncated(truncated: List[int], max_length: int) -> None:
    """Print the number of truncated texts and the length of the longest, given their original lengths."""
    if truncated:
        number, longest = len(truncated), max(truncated)
        say(f"{number:,} texts were cut to {max_length:,} bytes (--max-length), the longest of {longest:,}")


def read_cifar10(archive: Path) -> Iterator[ImageExample]:
    """Yield tuples (split, grayscale image as uint8 [1024], label) for the CIFAR-10 images.

    The last 5,000 training images are used for validation, as in the published benchmark.
    """
    record = 1 + CIFAR10_CHANNELS * CIFAR10_SIDE**2
    for name, content in read_members(archive):
        match = re.match(r"(?:.*/)?(data_batch_([1-5])|test_batch)\.bin$", name)
        if not match:
            continue
        data = np.frombuffer(content.read(), dtype=np.uint8)
        if not data.size or data.size % record:
            raise InputError(
                f"{archive}, {name}: {data.size:,} bytes, expected images of {record:,} bytes with their "
                "label"
            )
        records = data.reshape(-1, record)
        for number, entry in enumerate(records):
            label, channels = int(entry[0]), entry[1:].reshape(CIFAR10_CHANNELS, -1)
            if label > 9:
                raise InputError(f"{archive}, {name}, image {number + 1}: label {label}, expected 0 to 9")
            is_held_out = match[2] == "5" and number >= len(records) - len(records) // 2
            split = "test" if match[2] is None else "valid" if is_held_out else "train"
            yield split, to_gray(channels), label


def to_gray(channels: np.ndarray) -> np.ndarray:
    """Convert the intensities of T pixels from RGB, uint8 [3, T], to grayscale [T], as TensorFlow does."""
    weighted_sum = np.tensordot(np.array(GRAY_WEIGHTS), channels.astype(np.float64), axes=1)
    return np.floor(weighted_sum * GRAY_SCALE).astype(np.uint8)


def read_pathfinder(archive: Path, side: int, raw: Path) -> Iterator[ImageExample]:
    """Yield tuples (split, image as uint8 [side * side], label) for the published Pathfinder images.

    The images have the difficulty level "hard". The label is 1 if a path connects the two dots. The published
    files are not divided into splits. The images are shuffled with seed 0, then 80 % are used for training,
    10 % for validation and 10 % for testing.

    Args:
        archive: archive of the published benchmark.
        side: width and height of the images in pixels: 32, 64, 128 or 256.
        raw: temporary file for the pixels of all images. It is removed at the end.
    """
    within = re.compile(
        rf"(?:.*/)?pathfinder{side}/{PATHFINDER_LEVEL}/(imgs/\d+/[^/]+\.png|metadata/(\d+)\.npy)$"
    )
    images: Dict[str, int] = {}
    metadata: Dict[int, Tuple[str, bytes]] = {}
    written = 0
    raw.parent.mkdir(parents=True, exist_ok=True)
    with raw.open("wb") as file:
        for name, content in read_members(archive):
            match = within.match(name)
            if match and match[2]:
                metadata[int(match[2])] = name, content.read()
            elif match:
                image = read_png(content, side, f"{archive}, {name}")
                images[match[1]] = written if image.size else -1
                written += bool(image.size)
                file.write(image.tobytes())
    entries = [entry for _, lines in sorted(metadata.items()) for entry in _read_metadata(archive, *lines)]
    yield from _split_images(archive, images, entries, raw, side)
    raw.unlink()


def read_png(content: IO[bytes], side: int, location: str) -> np.ndarray:
    """Read a PNG image in grayscale, uint8 [side, side].

    An empty file, which occurs in the published archive, yields an empty array. The error message for a
    damaged image begins with ``location``.
    """
    PIL, data = pillow(), content.read()
    if not data:
        return np.empty(0, dtype=np.uint8)
    try:
        image = np.asarray(PIL.Image.open(BytesIO(data), formats=("PNG",)).convert("L"))
    except PIL.UnidentifiedImageError as error:  # its message describes the BytesIO object, so it is omitted
        raise InputError(f"{location}: expected an image") from error
    except (PIL.Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{location}: expected an image: {error}") from error
    if image.shape != (side, side):
        raise InputError(f"{location}: {image.shape[1]} x {image.shape[0]} pixels, expected {side} x {side}")
    return image


def _read_metadata(archive: Path, name: str, content: bytes) -> Iterator[Tuple[str, int, str]]:
    """Yield tuples (name, label, location) for the images listed in a Pathfinder metadata file.

    ``location`` is for error messages. The file contains text, although its name ends with ``.npy``.
    """
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        columns = line.split()
        where = f"{archive}, {name}, line {number}"
        if len(columns) < 4 or columns[3] not in ("0", "1"):
            raise InputError(f"{where}: {line!r}, expected folder, file, number and label (0 or 1)")
        yield f"{columns[0]}/{columns[1]}", int(columns[3]), where


def _split_images(
    archive: Path, images: Dict[str, int], entries: List[Tuple[str, int, str]], raw: Path, side: int
) -> Iterator[ImageExample]:
    """Yield (split, image, label) for the Pathfinder images, shuffled with seed 0 and divided into splits.

    Args:
        archive: archive of the published benchmark, for error messages.
        images: index of each image in ``raw``, or -1 for an empty file.
        entries: tuples (name, label, location) of the images, from :func:`_read_metadata`.
        raw: file with the pixels of all images.
        side: width and height of the images in pixels.
    """
    missing = [(name, where) for name, _, where in entries if name not in images]
    if missing:
        raise InputError(f"{missing[0][1]}: {missing[0][0]} is not in the archive, expected an image")
    examples = [(images[name], label) for name, label, _ in entries if images[name] >= 0]
    if not examples:
        raise InputError(f"{archive} has no images of pathfinder{side}/{PATHFINDER_LEVEL}")
    pixels = np.memmap(str(raw), dtype=np.uint8, mode="r").reshape(-1, side * side)
    order = np.random.RandomState(0).permutation(len(examples))
    end_of_train, end_of_valid = int(0.8 * len(examples)), int(0.9 * len(examples))
    for position, number in enumerate(order):
        index, label = examples[number]
        split = "train" if position < end_of_train else "valid" if position < end_of_valid else "test"
        yield split, pixels[index], label
