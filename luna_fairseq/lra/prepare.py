"""``luna-prepare-lra``: the data of one task of Long Range Arena, as fairseq-train reads it.

listops is generated after its published definition: operators MAX, MIN, MED and SUM_MOD, 500 to 2,000 tokens,
96,000 / 2,000 / 2,000 expressions, none twice. With --mirror, the published basic_{train,val,test}.tsv there
are converted, and every value is checked. text (IMDB, bytes), retrieval (AAN, pairs of texts as bytes), image
(CIFAR-10 in gray), pathfinder32 and pathfinder128 are converted from their published archives, which are
downloaded or taken from --mirror. pathfinder32-regenerated is drawn here after the published description:
another data set than the published one, for use where that cannot be had. Nothing appears in DIR before all
of it is written.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator

from luna_fairseq.commands.arguments import CommandParser, Number, random_seed
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.archive import whole
from luna_fairseq.files.checksums import digest, stamps, write_checksums
from luna_fairseq.files.download import RemoteFile, fetch
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.writing import replacing_folder
from luna_fairseq.lra import generated, published
from luna_fairseq.lra.listops import VOCABULARY
from luna_fairseq.lra.writing import SPLITS, Counts, write_images, write_tokens
from luna_fairseq.progress import progress

PROGRAM = "luna-prepare-lra"
RECORD = "prepare_lra.json"
BYTES = [str(value) for value in range(256)]
MAX_BYTES = 4000
SIZES = {"listops": (96000, 2000, 2000), "pathfinder32-regenerated": (160000, 20000, 20000)}
SOURCES = {
    *published.LISTOPS_FILES.values(),
    *(file.name for file in (published.IMDB, published.CIFAR10, published.LRA_RELEASE)),
}
VERSION = 1  # part of the key: a change of what is written must not take the old data for finished


def build_parser() -> CommandParser:
    """The command's options."""
    parser = CommandParser(PROGRAM, __doc__)
    add = parser.add_argument
    add("task", choices=list(TASKS), help="what to prepare")
    parser.path("--destdir", "folder to write to: new, or empty", "DIR", required=True)
    add(
        "--mirror",
        metavar="DIR|URL",
        help="take archives from this folder or address instead of the public ones (listops: published "
        "files, DIR)",
    )
    archives = "folder for downloads, up to 7.7 GB (default: archives, beside DIR)"
    parser.path("--archives", archives, "DIR")
    add("--seed", type=random_seed, default=1, help="of what is generated (default: 1)")
    for place, split in enumerate(SPLITS):
        sizes = " or ".join(f"{size[place]:,}" for size in SIZES.values())
        parser.count(f"--{split}", None, f"{split} examples to generate (default: {sizes})")
    shortest = "of generated expressions, exclusive (default: 500)"
    add("--min-length", type=Number(int, least=0), default=500, metavar="N", help=shortest)
    parser.count(
        "--max-length",
        None,
        "of generated expressions, exclusive (default: 2000); text and retrieval: bytes that are kept "
        f"(default: {MAX_BYTES})",
    )
    parser.workers("processes that generate")
    return parser


def prepare(args: argparse.Namespace) -> None:
    """Write the data of ``args.task`` to ``args.destdir``, unless it stands, and print its counts."""
    passing = ("destdir", "archives", "workers", "quiet")
    given = vars(args).items()
    settings = {name: value for name, value in given if name not in passing and value is not None}
    if args.mirror is not None and Path(args.mirror).is_dir():
        files = sorted(path for path in Path(args.mirror).iterdir() if path.name in SOURCES)
        settings["files"] = stamps(files)
    key = digest(VERSION, settings)
    known = (args.destdir / RECORD).is_file()
    steps = FinishedSteps(args.destdir, RECORD) if known else None
    facts = steps.find(args.task, key) if steps is not None else None
    if facts is not None:
        print(f"{args.task}: finished before")
    else:
        if args.destdir.exists() and (not args.destdir.is_dir() or any(args.destdir.iterdir())):
            before = steps.facts(args.task) if steps is not None else {}
            raise InputError(_why_not(args.destdir, before.get("settings"), settings))
        args.archives = args.archives or args.destdir.absolute().parent / "archives"
        facts = _write(args, key, settings)
    for split, by_class in facts["counts"].items():
        total = sum(by_class.values())
        balance = ", ".join(f"{label}: {100 * number / total:.1f} %" for label, number in by_class.items())
        print(f"{args.task}, {split}: {total:,} examples ({balance})")
    print(f"data for fairseq-train: {args.destdir}")


def _why_not(folder: Path, before: Any, settings: Dict[str, Any]) -> str:
    found = "something else"
    if before is not None:
        names = sorted(name for name in {*before, *settings} if before.get(name) != settings.get(name))
        found = f"data made with other {', '.join(names)}" if names else "data of which files are missing"
    return f"{folder} is there already, and holds {found}: give a new folder, or remove it to start anew"


def _write(args: argparse.Namespace, key: str, settings: Dict[str, Any]) -> Dict[str, Any]:
    """All in a folder beside DIR, which then takes its place."""
    with replacing_folder(args.destdir) as folder:
        counts = TASKS[args.task](args, folder)
        empty = [split for split, by_class in counts.items() if not sum(by_class.values())]
        if empty:
            raise InputError(
                f"there are no examples for {', '.join(empty)}: the archive has not the published layout"
            )
        files = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
        files.append(write_checksums(folder, files))
        facts = {"settings": settings, "counts": counts}
        FinishedSteps(folder, RECORD).record(args.task, key, files, facts)
        return facts


def _listops(args: argparse.Namespace, folder: Path) -> Counts:
    if args.mirror is None:
        bounds = args.min_length, args.max_length or 2000
        examples: Iterable = generated.listops(args.seed, _sizes(args), bounds, args.workers)
    else:
        examples = published.listops(Path(args.mirror))
    return write_tokens(folder, VOCABULARY, 10, _progress(examples, args))


def _text(args: argparse.Namespace, folder: Path) -> Counts:
    print("text: as in the benchmark, the test set is the validation set, too")
    with _archive(args, published.IMDB) as archive:
        examples = published.imdb(archive, args.max_length or MAX_BYTES)
        return write_tokens(folder, BYTES, 2, _progress(examples, args))


def _retrieval(args: argparse.Namespace, folder: Path) -> Counts:
    with _archive(args, published.LRA_RELEASE) as archive:
        examples = published.aan(archive, args.max_length or MAX_BYTES)
        return write_tokens(folder, BYTES, 2, _progress(examples, args), pairs=True)


def _image(args: argparse.Namespace, folder: Path) -> Counts:
    with _archive(args, published.CIFAR10) as archive:
        return write_images(folder, 10, _progress(published.cifar10(archive), args))


def _pathfinder(side: int, args: argparse.Namespace, folder: Path) -> Counts:
    with _archive(args, published.LRA_RELEASE) as archive:
        examples = published.pathfinder(archive, side, folder / "all.raw")
        return write_images(folder, 2, _progress(examples, args))


def _regenerated(args: argparse.Namespace, folder: Path) -> Counts:
    print("pathfinder32-regenerated: drawn here, not the published images")
    examples = generated.pathfinder(args.seed, _sizes(args), args.workers)
    return write_images(folder, 2, _progress(examples, args))


TASKS: Dict[str, Callable[[argparse.Namespace, Path], Counts]] = {
    "listops": _listops,
    "text": _text,
    "retrieval": _retrieval,
    "image": _image,
    "pathfinder32": partial(_pathfinder, 32),
    "pathfinder128": partial(_pathfinder, 128),
    "pathfinder32-regenerated": _regenerated,
}


def _sizes(args: argparse.Namespace) -> Dict[str, int]:
    defaults = dict(zip(SPLITS, SIZES[args.task]))
    return {split: getattr(args, split) or defaults[split] for split in SPLITS}


@contextmanager
def _archive(args: argparse.Namespace, file: RemoteFile) -> Iterator[Path]:
    """The archive, downloaded if need be; what is read from it has to be whole."""
    path = fetch(file, args.archives, args.mirror)
    with whole(path):
        yield path


def _progress(examples: Iterable, args: argparse.Namespace) -> Iterator:
    generated_here = args.task in SIZES and args.mirror is None
    return progress(examples, args.task, "examples", sum(_sizes(args).values()) if generated_here else None)


main = console_script(PROGRAM, build_parser, prepare, place="destdir")


if __name__ == "__main__":
    sys.exit(main())
