"""WMT'14 English-German: addresses of the published archives, and their conversion to plain text.

Sizes, line counts and checksums of the training archives are from TensorFlow Datasets and published
measurements. The checksum of ``test-full.tgz`` is from sacreBLEU.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Tuple

from luna_fairseq.errors import InputError
from luna_fairseq.files.archive import extract
from luna_fairseq.files.download import RemoteFile
from luna_fairseq.files.writing import replacing, scratch_folder
from luna_fairseq.translation.sgml import read_parallel_sgml

SITE = "https://www.statmt.org"
LANGUAGES = ("en", "de")


@dataclass(frozen=True)
class Part:
    """One corpus of WMT'14, such as Europarl.

    Attributes:
        name: name of the corpus for messages.
        split: split that the corpus belongs to: "train", "valid" or "test".
        archive: published archive that contains the corpus.
        members: paths of the English and the German file within the archive, plain text or SGML (``.sgm``).
        lines: number of sentence pairs in the published corpus.
    """

    name: str
    split: str
    archive: RemoteFile
    members: Tuple[str, str]
    lines: int


def _training_part(name: str, archive: str, size: int, sha256: str, stem: str, lines: int) -> Part:
    """Create the :class:`Part` of a training corpus with the files ``STEM.en`` and ``STEM.de``."""
    file = RemoteFile(f"{SITE}/{archive}", size, f"sha256:{sha256}")
    return Part(name, "train", file, (f"{stem}.en", f"{stem}.de"), lines)


PARTS = (
    _training_part(
        "Europarl v7",
        "wmt13/training-parallel-europarl-v7.tgz",
        657632379,
        "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
        "training/europarl-v7.de-en",
        1920209,
    ),
    _training_part(
        "Common Crawl",
        "wmt13/training-parallel-commoncrawl.tgz",
        918311367,
        "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
        "commoncrawl.de-en",
        2399123,
    ),
    _training_part(
        "News Commentary v9",
        "wmt14/training-parallel-nc-v9.tgz",
        80418416,
        "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
        "training/news-commentary-v9.de-en",
        201288,
    ),
    Part(
        "newstest2013",
        "valid",
        RemoteFile(f"{SITE}/wmt14/dev.tgz", 17742707),
        ("dev/newstest2013-src.en.sgm", "dev/newstest2013-ref.de.sgm"),
        3000,
    ),
    Part(
        "newstest2014",
        "test",
        RemoteFile(f"{SITE}/wmt14/test-full.tgz", 3255445, "md5:a8cd784e006feb32ac6f3d9ec7eb389a"),
        ("test-full/newstest2014-deen-src.en.sgm", "test-full/newstest2014-deen-ref.de.sgm"),
        3003,
    ),
)


def write_text(archives: Mapping[str, Path], folder: Path, published: bool) -> Dict[str, int]:
    """Convert the published archives to the files ``{train,valid,test}.{en,de}`` with one sentence per line.

    ``archives`` maps each corpus name to its archive. With ``published``, each corpus must have the published
    number of lines. The files are created only after all archives have been read successfully. Return the
    number of sentence pairs per corpus.
    """
    counts = {}
    with scratch_folder(folder.with_name(f"{folder.name}.tmp")) as temporary:
        for part in PARTS:
            print(f"text: {part.name} ...", flush=True)
            archive, files = archives[part.name], [temporary / Path(member).name for member in part.members]
            extract(archive, dict(zip(part.members, files)))
            pairs = _append(part, files, [temporary / f"{part.split}.{side}" for side in LANGUAGES])
            if published and pairs != part.lines:
                raise InputError(
                    f"{part.name} has {pairs:,} pairs instead of {part.lines:,}: {archive} is not the "
                    "published archive. Remove it and start the command again."
                )
            counts[part.name] = pairs
            for file in files:
                file.unlink()
        for name in text_files():
            with replacing(folder / name) as target:
                (temporary / name).replace(target)
    return counts


def text_files() -> List[str]:
    """Return the names of the plain text files that :func:`write_text` writes, such as "train.en"."""
    return [f"{split}.{language}" for split in ("train", "valid", "test") for language in LANGUAGES]


def _append(part: Part, files: List[Path], targets: List[Path]) -> int:
    """Append the two ``files`` of a corpus to ``targets``, and return the number of sentence pairs.

    SGML is converted to plain text, which replaces ``targets``. ``part`` names the corpus in error messages.
    """
    if files[0].suffix == ".sgm":
        pairs = read_parallel_sgml(*files)
        for side, target in enumerate(targets):
            target.write_bytes("".join(f"{pair[side]}\n" for pair in pairs).encode("utf-8"))
        return len(pairs)
    counts = [_append_lines(file, target) for file, target in zip(files, targets)]
    if counts[0] != counts[1]:
        raise InputError(
            f"{part.name} is not aligned: {part.members[0]} has {counts[0]:,} lines and {part.members[1]} "
            f"has {counts[1]:,}. Use the published archive."
        )
    return counts[0]


def _append_lines(source: Path, target: Path) -> int:
    r"""Append the lines of a file to another file, and return the number of lines.

    Lines end only at ``\n``. If the last line has no ``\n``, one is added, so that the next corpus begins on
    a new line.
    """
    lines, line = 0, b"\n"
    with source.open("rb") as reader, target.open("ab") as writer:
        for line in reader:
            lines += 1
            writer.write(line)
        if not line.endswith(b"\n"):
            writer.write(b"\n")
    return lines
