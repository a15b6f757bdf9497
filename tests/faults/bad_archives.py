"""Archives with paths outside their folder, with huge members, or with damaged content."""

import gzip
import io
import tarfile
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

from fault_world import World

Member = Tuple[str, Optional[bytes], Dict[str, Any]]
REVIEW, IMAGE = "aclImdb/train/pos/1.txt", "cifar-10-batches-bin/data_batch_1.bin"
METADATA = "lra_release/pathfinder32/curv_contour_length_14/metadata/0.npy"
PICTURE = "lra_release/pathfinder32/curv_contour_length_14/imgs/0/1.png"
BOMB = 1 << 28  # size of a member that consists of zeros


def archives(world: World, case: Callable[..., Any]) -> Iterator[Any]:
    """Write each bad archive to a folder of its own, and yield the command that reads it.

    Args:
        world: texts, data and checkpoints of the campaign.
        case: constructor of a case, called with a description, a name for the tables and the command line.

    Yields:
        Case of luna-prepare-lra with the folder of the archive as ``--mirror``.
    """
    for task, name, make in _tasks():
        for what, content in make().items():
            folder = world.folder / "bad" / f"{task} {what}".replace(" ", "-")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
            words = ["luna-prepare-lra", task, "--mirror", str(folder), "--destdir", str(world.now / "out")]
            yield case(what, f"a bad archive:luna-prepare-lra {task}", words)


def _tasks() -> Iterator[Tuple[str, str, Callable[[], Dict[str, bytes]]]]:
    """Iterate over the tasks of luna-prepare-lra and their bad archives.

    Yields:
        Name of the task, name of its archive, and a function that returns {description: bad archive}.
    """
    yield (
        "text",
        "aclImdb_v1.tar.gz",
        lambda: {
            **_damaged(REVIEW),
            "an empty review": packed((REVIEW, b"", {})),
            "training text only": packed((REVIEW, b"good", {})),
        },
    )
    yield (
        "image",
        "cifar-10-binary.tar.gz",
        lambda: {
            **_damaged(IMAGE),
            "half an image": packed((IMAGE, bytes(1000), {})),
            "an unknown class": packed((IMAGE, b"\x63" + bytes(3072), {})),
        },
    )
    yield (
        "retrieval",
        "lra_release.gz",
        lambda: {
            "a missing column": packed(("new_aan_pairs.train.tsv", b"1\ta\tb\ttext\n", {})),
            "an unknown label": packed(("new_aan_pairs.train.tsv", b"7\ta\tb\ttext\ttext\n", {})),
            "half a pair": packed(("new_aan_pairs.train.tsv", b"1\ta\tb\ttext\t\n", {})),
            "lines without an end": packed(("new_aan_pairs.train.tsv", bytes(BOMB), {})),
        },
    )
    yield (
        "pathfinder32",
        "lra_release.gz",
        lambda: {
            "no picture": packed((PICTURE, b"no picture", {}), (METADATA, b"imgs/0 1.png 0 1\n", {})),
            "a picture too large": packed((PICTURE, picture(20000), {})),
            "a picture of another size": packed((PICTURE, picture(16), {})),
            "half a picture": packed((PICTURE, picture(32)[:-30], {})),
            "a picture outside the folder": packed((METADATA, b"../../../evil 1.png 0 1\n", {})),
            "metadata that is a pickle": packed((METADATA, b"\x80\x04cos\nsystem\n", {})),
        },
    )


def _damaged(name: str) -> Dict[str, bytes]:
    """Return {description: archive} with the faults that an archive of any task can have.

    Args:
        name: path of the member that the task reads.
    """
    whole = packed((name, b"good text " * 400, {}))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 16
    return {
        "a path that leaves the folder": packed(
            ("../../../evil", b"evil", {}), ("../" * 20 + "tmp/evil", b"evil", {})
        ),
        "an absolute path": packed(("/tmp/evil", b"evil", {})),
        "such a path with the right name": packed((f"../../../evil/{name}", b"", {})),
        "a symbolic link": packed((name, None, {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})),
        "a link to a file outside": packed((name, None, {"type": tarfile.LNKTYPE, "linkname": "../../evil"})),
        "a device": packed((name, None, {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5})),
        "a pipe": packed((name, None, {"type": tarfile.FIFOTYPE})),
        "a bomb": packed((name, bytes(BOMB), {})),
        "a bomb beside the data": packed(("other", bytes(BOMB), {}), (name, b"good", {})),
        "the first half": whole[: len(whole) // 2],
        "a flipped bit": bytes(flipped),
        "no end": whole[:-4],
        "no gzip": b"no archive " * 100,
        "nothing": b"",
        "no tar": gzip.compress(b"no archive " * 1000),
        "an empty archive": packed(),
        "a negative size": gzip.compress(_archive_of_size(name, b"\xff" * 12)),
        "a huge size": gzip.compress(_archive_of_size(name, b"77777777777\0")),
    }


def packed(*members: Member) -> bytes:
    """Return a gzipped tar archive.

    Args:
        members: tuples (name, content, further attributes of the tar entry).
    """
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=6) as archive:
        for name, content, settings in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content or b"")
            for key, value in settings.items():
                setattr(entry, key, value)
            archive.addfile(entry, io.BytesIO(content or b""))
    return target.getvalue()


def _archive_of_size(name: str, size: bytes) -> bytes:
    """Return a tar archive with one empty member whose header claims the given size.

    Args:
        name: name of the member.
        size: 12 bytes of the size field.
    """
    entry = tarfile.TarInfo(name)
    header = bytearray(entry.tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


def picture(side: int) -> bytes:
    """Return a black PNG picture of ``side`` x ``side`` pixels."""
    from PIL import Image

    target = io.BytesIO()
    Image.new("L", (side, side)).save(target, "png")
    return target.getvalue()
