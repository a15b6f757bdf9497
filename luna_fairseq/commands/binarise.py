"""fairseq-preprocess on encoded text: its files appear in the folder of the data when all of them are
there."""

import os
import shutil
from pathlib import Path
from typing import Iterable, List, Mapping, Optional, Sequence, Tuple

from luna_fairseq.commands.logged import fairseq, run_logged
from luna_fairseq.progress import counter


def binarise(
    parts: Mapping[str, Sequence[Path]],
    dictionary: Path,
    folder: Path,
    names: Sequence[str],
    workers: int,
    languages: Optional[Tuple[str, str]] = None,
    target_dictionary: Optional[Path] = None,
) -> None:
    """Binarise encoded text.

    Args:
        parts: files of ``train``, ``valid`` and ``test``; for pairs of languages without the suffix
        dictionary: of all of them
        folder: to write to
        names: of the files that fairseq-preprocess makes of them
        workers: processes
        languages: source and target, for pairs (default: one text)
        target_dictionary: of the target side (default: the one of both)

    Raises:
        InputError: fairseq-preprocess failed
    """
    temporary = folder / "binarise.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    options = ["--destdir", str(temporary), "--srcdict", str(dictionary), "--workers", str(workers)]
    if languages is None:
        options += ["--only-source"]
    else:
        options += ["--source-lang", languages[0], "--target-lang", languages[1]]
        options += ["--tgtdict", str(target_dictionary)] if target_dictionary else ["--joined-dictionary"]
    for split, paths in parts.items():
        options += [f"--{split}pref", ",".join(map(str, paths))] if paths else []
    texts = sum(map(len, parts.values())) * (1 if languages is None else 2)
    with counter("binarise", texts, "texts") as bar:
        command = fairseq("preprocess", options)
        run_logged(command, temporary / "output.log", watch=lambda line: bar.update(" sents, " in line))
    for name in names:
        os.replace(temporary / name, folder / name)
    shutil.rmtree(temporary)


def binarised_names(languages: Tuple[str, str], splits: Iterable[str]) -> List[str]:
    """Names of the files that fairseq-preprocess makes of pairs."""
    pair = "-".join(languages)
    names = [f"dict.{language}.txt" for language in languages]
    for split in splits:
        names += [f"{split}.{pair}.{language}.{end}" for language in languages for end in ("bin", "idx")]
    return names
