"""Flip bits in data, dictionaries and checkpoints, or truncate them, before a command reads them."""

import os
import random
import shutil
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Optional

from fault_world import MASKED, TRANSLATIONS, UPDATES, World, digests
from tallies import EQUAL, FAILED, REFUSED, UNPROTECTED, Tally
from warmed import USER_DIR, Ended, run, seeded


class Damage(NamedTuple):
    """Files to damage, and the command that reads them.

    Attributes:
        what: description for the tables.
        copied: name of the folder in the world whose copy is damaged.
        files: pattern of the files. One of them is damaged at a time.
        read: function ``(world, copy) -> command line``.
        times: number of repetitions.
        is_unprotected: True if the files have no checksums, so that no command can notice the damage
            (default: False).
    """

    what: str
    copied: str
    files: str
    read: Callable[[World, Path], List[str]]
    times: int
    is_unprotected: bool = False


def _train(world: World, data: Path) -> List[str]:
    return world.train(world.now / "out", "--max-update", "4", data=data)


def _generate(world: World, data: Path) -> List[str]:
    return world.generate(world.last, data=data)


def _pretrain(world: World, data: Path) -> List[str]:
    words = ["fairseq-train", str(data), "--user-dir", USER_DIR, *MASKED.split()]
    return [*words, "--save-dir", str(world.now / "out")]


def _finetune(world: World, data: Path) -> List[str]:
    words = world.finetune(world.now / "out")
    return [str(data) if word == str(world.folder / "task") else word for word in words]


def _resume(world: World, folder: Path) -> List[str]:
    return world.train(folder, "--max-update", str(UPDATES + 2))


DAMAGES = (
    Damage("prepared data, read by fairseq-train", "bitext", "[tvd][rai][ali]*.*", _train, 20),
    Damage("prepared data, read by fairseq-generate", "bitext", "test.*", _generate, 12),
    Damage("prepared text, read by fairseq-train", "mono", "[tvd][rai][ali]*.*", _pretrain, 12),
    Damage("a prepared task, read by luna-finetune", "task", "*/[tvd][rai][ali]*.*", _finetune, 6),
    Damage("the last checkpoint, read by fairseq-train", "trained", "checkpoint_last.pt", _resume, 16),
    Damage(
        "a checkpoint, read by fairseq-generate",
        "trained",
        "checkpoint_last.pt",
        lambda world, copy: world.generate(copy / "checkpoint_last.pt"),
        14,
    ),
    Damage(
        "checkpoints, read by luna-average-checkpoints",
        "trained",
        "checkpoint_1_*.pt",
        lambda world, copy: world.average(world.now / "out.pt", (str(copy), "--num-update-checkpoints", "2")),
        12,
    ),
    Damage(
        "a pretrained checkpoint, read by luna-finetune",
        "pretrained",
        "checkpoint_last.pt",
        lambda world, copy: world.finetune(world.now / "out", copy / "checkpoint_last.pt"),
        6,
    ),
    Damage(
        "a pretrained checkpoint, read by luna-export-huggingface",
        "pretrained",
        "checkpoint_last.pt",
        lambda world, copy: world.export(world.now / "out", copy / "checkpoint_last.pt"),
        6,
    ),
    Damage(
        "data of fairseq-preprocess, which has no checksums", "plain", "[tvd][rai][ali]*.*", _train, 10, True
    ),
)


def flips(world: World, tally: Tally, times: Callable[[int], int], seed: int) -> None:
    """Damage files, run the commands that read them, and compare the results with those of intact files.

    Args:
        world: texts, data and checkpoints of the campaign.
        tally: counter of outcomes, updated in place.
        times: function from a number of repetitions to the number for this part of the campaign.
        seed: seed of random choices.
    """
    make_plain(world)
    for damage in DAMAGES:
        number = times(damage.times)
        expected = read(world, damage, None)[1] if number else None
        for turn in range(number):
            generator = seeded(seed, damage.what, turn)
            cut = turn % 3 == 2
            ended, found, where = read(world, damage, generator, cut)
            what = "a truncation" if cut else "a flipped bit"
            outcome = outcome_of(ended, found == expected)
            if outcome == FAILED and damage.is_unprotected:
                outcome = UNPROTECTED
            tally.note(what, damage.what, outcome, f"{where}: status {ended.status} {ended.output[-700:]}")


def make_plain(world: World) -> None:
    """Copy the prepared data without its checksums, like the output of fairseq-preprocess."""
    target = world.folder / "plain"
    if not target.exists():
        shutil.copytree(str(world.folder / "bitext"), str(target))
        (target / "checksums.sha256").unlink()


def read(world: World, damage: Damage, generator: Optional[random.Random], cut: bool = False) -> Any:
    """Copy files, damage one of them, and run the command that reads the copy.

    Args:
        world: texts, data and checkpoints of the campaign.
        damage: files to damage, and the command.
        generator: random number generator that chooses the file and the position. None leaves all files
            intact.
        cut: If True, truncate the file instead of flipping a bit (default: False).

    Returns:
        End of the command, its result (status, files and printed translations), and a description of the
        damage.
    """
    world.empty_folder()
    copy, where = world.now / "copy", "nothing"
    if damage.read is _resume:
        copy = world.now / "out"
    shutil.copytree(str(world.folder / damage.copied), str(copy))
    if generator is not None:
        path = generator.choice(sorted(copy.glob(damage.files)))
        where = harm(path, generator, cut)
    ended = run(damage.read(world, copy), world.log)
    if copy.name == "copy":
        shutil.rmtree(str(copy))
    found = digests(world.now)
    translations = [line for line in ended.output.splitlines() if line.startswith(TRANSLATIONS)]
    return ended, (ended.status, found, translations), where


def harm(path: Path, generator: random.Random, cut: bool) -> str:
    """Flip a bit of a file, or truncate the file.

    Args:
        path: file to damage.
        generator: random number generator that chooses the position.
        cut: If True, truncate the file.

    Returns:
        Description of the damage.
    """
    place = generator.randrange(path.stat().st_size)
    if cut:
        os.truncate(str(path), place)
        return f"{path.name} cut at {place}"
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ (1 << generator.randrange(8))]))
    return f"{path.name}, bit flipped in byte {place}"


def outcome_of(ended: Ended, is_equal: bool) -> str:
    """Classify how a command ended: equal, refused or failed.

    Args:
        ended: end of the command.
        is_equal: True if the result equals the result of intact files.
    """
    if ended.status == 0:
        return EQUAL if is_equal else FAILED
    return REFUSED if is_refused(ended) else FAILED


def is_refused(ended: Ended) -> bool:
    """Return True if a command refused its input.

    Commands of this package must end with one line. Commands of fairseq may end with a traceback.
    """
    return ended.status > 0 if ended.program.startswith("fairseq-") else in_one_line(ended)


def in_one_line(ended: Ended) -> bool:
    """Return True if a command failed with exactly one error line, and without a traceback."""
    lines = [line for line in ended.output.splitlines() if line.strip()]
    errors = [line for line in lines if "error: " in line]
    return (
        ended.status > 0 and len(errors) == 1 and errors[0] == lines[-1] and "Traceback" not in ended.output
    )


def describe(ended: Ended) -> str:
    """Return the status of a command and the end of its output, for messages."""
    return f"status {ended.status}: {ended.output[-700:]}"
