"""Command ``luna-prepare-lra``: download or generate the data of one task of Long Range Arena.

The command writes the data in the format that fairseq-train reads. DIR appears only after all of its files
have been written.

The task listops is generated from its published definition: 96,000 / 2,000 / 2,000 distinct expressions of
500 to 2,000 tokens with the operators MAX, MIN, MED and SUM_MOD. With --mirror, the published files
basic_{train,val,test}.tsv are converted instead, and every value is checked.

The other tasks are converted from their published archives, which are downloaded or read from --mirror: text
(IMDB reviews as bytes), retrieval (AAN, pairs of papers as bytes), image (CIFAR-10 in gray), pathfinder32 and
pathfinder128.

The task pathfinder32-regenerated draws its own images from the published description. Use it if you cannot
get the published archive, and do not compare its accuracies with published ones.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, Set, Tuple

from luna_fairseq.commands.arguments import CommandParser, Number, random_seed
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.archive import reporting_damage
from luna_fairseq.files.checksums import digest, file_stamps, write_checksums
from luna_fairseq.files.download import RemoteFile, fetch
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.writing import replacing_folder
from luna_fairseq.lra.layout import SPLITS, Counts
from luna_fairseq.lra.listops import VOCABULARY
from luna_fairseq.progress import progress

# The modules that need torch and fairseq are imported in the functions, so that --help is fast.


PROGRAM = "luna-prepare-lra"
RECORD = "prepare_lra.json"
BYTES = [str(value) for value in range(256)]
MAX_BYTES = 4000
SIZES = {"listops": (96000, 2000, 2000), "pathfinder32-regenerated": (160000, 20000, 20000)}
DEFAULTS = {"seed": 1, "min_length": 500}
# Options that each task reads besides --destdir and --workers. With --mirror, listops reads no others.
_GENERATED, _CONVERTED = ("seed", *SPLITS), ("mirror", "archives")
TASK_OPTIONS: Dict[str, Tuple[str, ...]] = {
    "listops": ("mirror", *_GENERATED, "min_length", "max_length"),
    "text": (*_CONVERTED, "max_length"),
    "retrieval": (*_CONVERTED, "max_length"),
    "image": _CONVERTED,
    "pathfinder32": _CONVERTED,
    "pathfinder128": _CONVERTED,
    "pathfinder32-regenerated": _GENERATED,
}
# Part of the digest of the settings. Increase it when the format of the output changes, so that older data is
# not mistaken for finished data.
VERSION = 1


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    parser = CommandParser(PROGRAM, __doc__, example="luna-prepare-lra listops --destdir data/lra/listops")
    add = parser.add_argument
    add("task", choices=list(TASKS), help="task to prepare")
    parser.path("--destdir", "folder to write to, which must be empty or absent", "DIR", required=True)
    add(
        "--mirror",
        metavar="DIR|URL",
        help="folder or address of the archives (default: their public addresses); for listops, folder of "
        "the published files (default: generate the expressions)",
    )
    archives = "folder for downloads of up to 7.7 GB (default: folder archives next to --destdir)"
    parser.path("--archives", archives, "DIR")
    add("--seed", type=random_seed, help="random seed of generated data (default: 1)")
    for index, split in enumerate(SPLITS):
        sizes = " or ".join(f"{size[index]:,}" for size in SIZES.values())
        parser.count(f"--{split}", None, f"number of {split} examples to generate (default: {sizes})")
    shortest = "minimum length of generated expressions, exclusive (default: 500)"
    add("--min-length", type=Number(int, least=0), metavar="N", help=shortest)
    parser.count(
        "--max-length",
        None,
        "maximum length of generated expressions, exclusive (default: 2000); for text and retrieval, number "
        f"of bytes to keep of each text (default: {MAX_BYTES})",
    )
    parser.workers("number of processes that generate examples")
    return parser


def prepare(args: argparse.Namespace) -> None:
    """Run the command: write the data of a task, unless it is up to date, and print the example counts."""
    _check_options(args)
    not_settings = ("destdir", "archives", "workers", "quiet")
    given = vars(args).items()
    settings = {name: value for name, value in given if name not in not_settings and value is not None}
    if args.mirror is not None and Path(args.mirror).is_dir():
        names = _input_names()
        settings["files"] = file_stamps(
            sorted(path for path in Path(args.mirror).iterdir() if path.name in names)
        )
    key = digest(VERSION, settings)
    has_record = (args.destdir / RECORD).is_file()
    steps = FinishedSteps(args.destdir, RECORD) if has_record else None
    results = steps.find(args.task, key) if steps is not None else None
    if results is not None:
        print(f"{args.task}: finished before")
    else:
        if args.destdir.exists() and (not args.destdir.is_dir() or any(args.destdir.iterdir())):
            before = steps.results(args.task) if steps is not None else {}
            raise InputError(_describe_conflict(args.destdir, before.get("settings"), settings))
        args.archives = args.archives or args.destdir.absolute().parent / "archives"
        results = _write_data(args, key, settings)
    for split, by_class in results["counts"].items():
        total = sum(by_class.values())
        balance = ", ".join(f"{label}: {100 * number / total:.1f} %" for label, number in by_class.items())
        print(f"{args.task}, {split}: {total:,} examples ({balance})")
    print(f"data for fairseq-train: {args.destdir}")


def _check_options(args: argparse.Namespace) -> None:
    """Raise InputError for an option that the task does not read. Set the defaults of other options."""
    task, read = args.task, TASK_OPTIONS[args.task]
    if task == "listops" and args.mirror is not None:
        task, read = "listops with --mirror", ("mirror",)
    for name in sorted(set().union(*TASK_OPTIONS.values())):
        is_given = getattr(args, name) is not None
        if is_given and name not in read:
            raise InputError(f"--{name.replace('_', '-')} has no effect on {task}. Leave it out.")
        if not is_given and name in read:
            setattr(args, name, DEFAULTS.get(name))


def _input_names() -> Set[str]:
    """Return the names of all input files that the command can read from the folder ``--mirror``."""
    from luna_fairseq.lra import published

    archives = (published.IMDB, published.CIFAR10, published.LRA_RELEASE)
    return {*published.LISTOPS_FILES.values(), *(file.name for file in archives)}


def _describe_conflict(folder: Path, before: Any, settings: Dict[str, Any]) -> str:
    """Return an error message for an output folder that contains data made with different settings.

    ``settings`` are the current settings, and ``before`` the settings of the existing data. ``before`` is
    None if another program wrote the data.
    """
    found = "other files"
    if before is not None:
        names = sorted(name for name in {*before, *settings} if before.get(name) != settings.get(name))
        found = f"data made with other {', '.join(names)}" if names else "data with missing files"
    return f"{folder} exists already and holds {found}. Give a new folder, or remove this one."


def _write_data(args: argparse.Namespace, key: str, settings: Dict[str, Any]) -> Dict[str, Any]:
    """Write the data of a task to a temporary folder, and rename it to the output folder when complete.

    ``key``, a checksum of the input and the settings, is recorded in the folder. Return a dictionary with the
    ``settings`` and the ``counts`` of examples per split and class.
    """
    with replacing_folder(args.destdir) as folder:
        counts = TASKS[args.task](args, folder)
        empty = [split for split, by_class in counts.items() if not sum(by_class.values())]
        if empty:
            raise InputError(
                f"There are no examples for {', '.join(empty)}. Use an archive with the published layout."
            )
        files = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
        files.append(write_checksums(folder, files))
        results = {"settings": settings, "counts": counts}
        FinishedSteps(folder, RECORD).record(args.task, key, files, results)
        return results


def _prepare_listops(args: argparse.Namespace, folder: Path) -> Counts:
    """Write ListOps expressions, read from ``--mirror`` if set, otherwise generated. Return their counts."""
    from luna_fairseq.lra import generated, published
    from luna_fairseq.lra.writing import write_tokens

    if args.mirror is None:
        bounds = args.min_length, args.max_length or 2000
        examples: Iterable = generated.generate_listops(args.seed, _split_sizes(args), bounds, args.workers)
    else:
        examples = published.read_listops(Path(args.mirror))
    return write_tokens(folder, VOCABULARY, 10, _show_progress(examples, args))


def _prepare_published(args: argparse.Namespace, folder: Path) -> Counts:
    """Convert the published archive of a task, and write its examples to ``folder``. Return their counts."""
    from luna_fairseq.lra import published
    from luna_fairseq.lra.writing import write_images, write_tokens

    length, raw = args.max_length or MAX_BYTES, folder / "all.raw"
    # Task: archive, function that reads its examples, function that writes them.
    conversions: Dict[str, Tuple[RemoteFile, Callable[..., Iterable], Callable[..., Counts]]] = {
        "text": (
            published.IMDB,
            partial(published.read_imdb, max_length=length),
            partial(write_tokens, folder, BYTES, 2),
        ),
        "retrieval": (
            published.LRA_RELEASE,
            partial(published.read_aan, max_length=length),
            partial(write_tokens, folder, BYTES, 2, pairs=True),
        ),
        "image": (published.CIFAR10, published.read_cifar10, partial(write_images, folder, 10)),
        "pathfinder32": (
            published.LRA_RELEASE,
            partial(published.read_pathfinder, side=32, raw=raw),
            partial(write_images, folder, 2),
        ),
        "pathfinder128": (
            published.LRA_RELEASE,
            partial(published.read_pathfinder, side=128, raw=raw),
            partial(write_images, folder, 2),
        ),
    }
    remote, read, write = conversions[args.task]
    if args.task == "text":
        print("text: the test set is also the validation set, as in the published benchmark")
    archive = fetch(remote, args.archives, args.mirror)
    with reporting_damage(archive):
        return write(examples=_show_progress(read(archive), args))


def _prepare_regenerated(args: argparse.Namespace, folder: Path) -> Counts:
    """Generate 32 x 32 Pathfinder images, and write them to ``folder``. Return counts by split and class."""
    from luna_fairseq.lra import generated
    from luna_fairseq.lra.writing import write_images

    print("pathfinder32-regenerated: images drawn by this command, not the published images")
    examples = generated.generate_pathfinder(args.seed, _split_sizes(args), args.workers)
    return write_images(folder, 2, _show_progress(examples, args))


TASKS: Dict[str, Callable[[argparse.Namespace, Path], Counts]] = {
    "listops": _prepare_listops,
    "text": _prepare_published,
    "retrieval": _prepare_published,
    "image": _prepare_published,
    "pathfinder32": _prepare_published,
    "pathfinder128": _prepare_published,
    "pathfinder32-regenerated": _prepare_regenerated,
}


def _split_sizes(args: argparse.Namespace) -> Dict[str, int]:
    """Return the number of examples to generate per split, by default the benchmark's."""
    defaults = dict(zip(SPLITS, SIZES[args.task]))
    return {split: getattr(args, split) or defaults[split] for split in SPLITS}


def _show_progress(examples: Iterable, args: argparse.Namespace) -> Iterator:
    """Iterate over examples with a progress bar. The total is shown if the examples are generated."""
    is_generated = args.task in SIZES and args.mirror is None
    return progress(
        examples, args.task, "examples", sum(_split_sizes(args).values()) if is_generated else None
    )


main = console_script(PROGRAM, build_parser, prepare, path_argument="destdir")


if __name__ == "__main__":
    sys.exit(main())
