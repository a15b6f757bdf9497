"""Examples of Long Range Arena from its published files: ListOps, Text, Retrieval, Image and Pathfinder."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from typing import IO, Dict, Iterator, List, Tuple

import numpy as np

from luna_fairseq.errors import InputError
from luna_fairseq.files.archive import stream
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
# Gray is what tf.image.rgb_to_grayscale makes of uint8: weighed, scaled to 256 values, and rounded down.
GRAY_WEIGHTS, GRAY_SCALE = (0.2989, 0.587, 0.114), 255.5 / 255
PATHFINDER_LEVEL = "curv_contour_length_14"

TokenExample = Tuple[str, List[List[int]], int]
ImageExample = Tuple[str, np.ndarray, int]


def listops(folder: Path) -> Iterator[TokenExample]:
    """Examples in the published ``basic_{train,val,test}.tsv``; every value is computed anew and compared.
    Raises InputError where a file is missing, or a line is malformed or has another value."""
    places = {symbol: place for place, symbol in enumerate(VOCABULARY)}
    for split, name in LISTOPS_FILES.items():
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path} does not exist: --mirror must be a folder that holds {name}")
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
                yield split, [[places[token] for token in tokens]], value


def imdb(archive: Path, max_length: int) -> Iterator[TokenExample]:
    """Reviews as bytes, positive 1 and negative 0. As in the benchmark, the test set is the validation set,
    too."""
    pattern = re.compile(r"(?:.*/)?(train|test)/(pos|neg)/[^/]+\.txt$")
    cut: List[int] = []
    for name, content in stream(archive):
        match = pattern.match(name)
        if match:
            text, label = _kept(content.read(), max_length, cut), int(match[2] == "pos")
            if not text:
                raise InputError(f"{archive}, {name}: the review is empty, expected text")
            for split in ("train",) if match[1] == "train" else ("valid", "test"):
                yield split, [text], label
    _say_cut(cut, max_length)


def aan(archive: Path, max_length: int) -> Iterator[TokenExample]:
    """Pairs of papers as bytes, 1 where one cites the other. Raises InputError where a line has not five
    columns, or half of a pair is missing."""
    cut: List[int] = []
    for name, content in stream(archive):
        split = AAN_FILES.get(name.rsplit("/", 1)[-1])
        if split is None:
            continue
        for number, line in enumerate(content, 1):
            where = f"{archive}, {name}, line {number}"
            columns = line.rstrip(b"\r\n").split(b"\t")
            if len(columns) != len(AAN_COLUMNS):
                raise InputError(f"{where}: {len(columns)} columns, expected {', '.join(AAN_COLUMNS)}")
            label, texts = columns[0], [_kept(text, max_length, cut) for text in columns[3:]]
            if label not in (b"0", b"1", b"0.0", b"1.0"):
                raise InputError(f"{where}: label {label.decode('ascii', 'replace')!r}, expected 0 or 1")
            for column, text in zip(AAN_COLUMNS[3:], texts):
                if not text:
                    raise InputError(f"{where}: {column} is empty, expected both texts of the pair")
            yield split, texts, int(float(label))
    _say_cut(cut, max_length)


def _kept(text: bytes, max_length: int, cut: List[int]) -> List[int]:
    """The bytes of a text that are kept; its length goes to ``cut`` if these are not all."""
    if len(text) > max_length:
        cut.append(len(text))
    return list(text[:max_length])


def _say_cut(cut: List[int], max_length: int) -> None:
    if cut:
        say(
            f"{len(cut):,} texts were cut to {max_length:,} bytes (--max-length), the longest of {max(cut):,}"
        )


def cifar10(archive: Path) -> Iterator[ImageExample]:
    """Gray images; the last 5,000 of the training images are for validation, as in the benchmark. Raises
    InputError where a batch does not consist of whole images, or a label is no class."""
    record = 1 + CIFAR10_CHANNELS * CIFAR10_SIDE**2
    for name, content in stream(archive):
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
        for number, row in enumerate(records):
            if row[0] > 9:
                raise InputError(f"{archive}, {name}, image {number + 1}: label {row[0]}, expected 0 to 9")
            held_out = match[2] == "5" and number >= len(records) - len(records) // 2
            split = "test" if match[2] is None else "valid" if held_out else "train"
            yield split, gray(row[1:].reshape(CIFAR10_CHANNELS, -1)), int(row[0])


def gray(channels: np.ndarray) -> np.ndarray:
    """Intensities [T] of red, green and blue ones [3, T], all uint8."""
    weighed = np.tensordot(np.array(GRAY_WEIGHTS), channels.astype(np.float64), axes=1)
    return np.floor(weighed * GRAY_SCALE).astype(np.uint8)


def pathfinder(archive: Path, side: int, raw: Path) -> Iterator[ImageExample]:
    """Images of the hard level; 80 % for training, 10 % each for validation and test, drawn with seed 0.

    Args:
        archive: of the whole benchmark.
        side: 32, 64, 128 or 256 pixels.
        raw: a temporary file for the pixels; removed at the end.

    Raises:
        InputError: an image is of another size or missing, or a line of the metadata is malformed.
    """
    within = re.compile(
        rf"(?:.*/)?pathfinder{side}/{PATHFINDER_LEVEL}/(imgs/\d+/[^/]+\.png|metadata/(\d+)\.npy)$"
    )
    images: Dict[str, int] = {}
    metadata: Dict[int, Tuple[str, bytes]] = {}
    written = 0
    raw.parent.mkdir(parents=True, exist_ok=True)
    with raw.open("wb") as file:
        for name, content in stream(archive):
            match = within.match(name)
            if match and match[2]:
                metadata[int(match[2])] = name, content.read()
            elif match:
                image = read_png(content, side, f"{archive}, {name}")
                images[match[1]] = written if image.size else -1
                written += bool(image.size)
                file.write(image.tobytes())
    entries = [entry for _, lines in sorted(metadata.items()) for entry in _entries(archive, *lines)]
    yield from _split_images(archive, images, entries, raw, side)
    raw.unlink()


def read_png(content: IO[bytes], side: int, where: str) -> np.ndarray:
    """Intensities [side, side]; an empty array for an empty file, which the published archive has one of."""
    PIL, data = pillow(), content.read()
    if not data:
        return np.empty(0, dtype=np.uint8)
    try:
        image = np.asarray(PIL.Image.open(BytesIO(data), formats=("PNG",)).convert("L"))
    except PIL.UnidentifiedImageError as error:  # whose words are of the object in memory
        raise InputError(f"{where}: expected an image") from error
    except (PIL.Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{where}: expected an image: {error}") from error
    if image.shape != (side, side):
        raise InputError(f"{where}: {image.shape[1]} x {image.shape[0]} pixels, expected {side} x {side}")
    return image


def _entries(archive: Path, name: str, content: bytes) -> Iterator[Tuple[str, int, str]]:
    """Image, label and place of every line of a file of metadata, which is text in spite of its name."""
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        columns = line.split()
        where = f"{archive}, {name}, line {number}"
        if len(columns) < 4 or columns[3] not in ("0", "1"):
            raise InputError(f"{where}: {line!r}, expected folder, file, number and label (0 or 1)")
        yield f"{columns[0]}/{columns[1]}", int(columns[3]), where


def _split_images(
    archive: Path, images: Dict[str, int], entries: List[Tuple[str, int, str]], raw: Path, side: int
) -> Iterator[ImageExample]:
    missing = [(name, where) for name, _, where in entries if name not in images]
    if missing:
        raise InputError(f"{missing[0][1]}: {missing[0][0]} is not in the archive, expected an image")
    kept = [(images[name], label) for name, label, _ in entries if images[name] >= 0]
    if not kept:
        raise InputError(f"{archive} has no images of pathfinder{side}/{PATHFINDER_LEVEL}")
    pixels = np.memmap(str(raw), dtype=np.uint8, mode="r").reshape(-1, side * side)
    order = np.random.RandomState(0).permutation(len(kept))
    train, valid = int(0.8 * len(kept)), int(0.9 * len(kept))
    for place, chosen in enumerate(order):
        row, label = kept[chosen]
        yield "train" if place < train else "valid" if place < valid else "test", pixels[row], label
