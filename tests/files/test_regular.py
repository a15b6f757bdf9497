"""Readers skip files that systems and editors leave. Readers and writers refuse pipes."""

import io
import json
import os
import shutil
import tarfile
import threading
from pathlib import Path

import pytest

from luna_fairseq.benchmark import __main__ as benchmark
from luna_fairseq.errors import InputError
from luna_fairseq.files.archive import read_members
from luna_fairseq.files.regular import is_data
from luna_fairseq.files.writing import check_separate, check_writable, write_text
from luna_fairseq.lra import prepare as prepare_lra
from luna_fairseq.lra import seeds
from luna_fairseq.masked_lm import evaluate_task, prepare_task, prepare_text
from luna_fairseq.masked_lm.finetuning import TASKS
from luna_fairseq.report import show, training
from luna_fairseq.translation import plot_alignments, prepare_bitext, score

LEFT_BEHIND = [
    "._0_9.txt",
    ".DS_Store",
    "0_9.txt~",
    ".#0_9.txt",
    ".0_9.txt.swp",
    "Thumbs.db",
    "__MACOSX/0_9.txt",
]


@pytest.mark.parametrize("name", LEFT_BEHIND)
def test_files_of_systems_and_editors_are_no_data(name):
    assert not is_data(f"aclImdb/train/pos/{name}")
    assert is_data("./aclImdb/train/pos/0_9.txt") and is_data(".hidden/data.txt")


def test_archives_skip_and_count_other_files(tmp_path, capsys):
    names = [
        f"aclImdb/{split}/pos/{name}" for split in ("train", "test") for name in ["0_9.txt", *LEFT_BEHIND]
    ]
    with tarfile.open(tmp_path / "aclImdb_v1.tar.gz", "w:gz") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = 3
            tar.addfile(entry, io.BytesIO(b"gut"))
    assert [name for name, _ in read_members(tmp_path / "aclImdb_v1.tar.gz")] == [names[0], names[8]]
    assert prepare_lra.main(["text", "--destdir", str(tmp_path / "out"), "--mirror", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert (
        "text, train: 1 examples" in out
        and "skipped 14 files that are not data, such as aclImdb/train" in out
    )


def test_folders_skip_and_count_other_files(tmp_path, capsys):
    passage = {"article": "a", "questions": ["b _"], "options": [["c", "d", "e", "f"]], "answers": ["A"]}
    for name in ("1.txt", "._1.txt", "__MACOSX/1.txt"):
        path = tmp_path / "train" / "middle" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(passage) if name[0] == "1" else "Mac OS X")
    assert len(TASKS["RACE"].read(tmp_path, "train")) == 1
    assert "skipped 2 files that are not data" in capsys.readouterr().out


@pytest.fixture
def pipe(tmp_path):
    """Named pipe without a writer, in a folder with a regular file."""
    path = tmp_path / "pipe.en"
    os.mkfifo(path)
    (tmp_path / "pipe.de").write_text("a\n")
    yield path
    # Open both ends, so that a reader that is still waiting can end.
    threading.Thread(target=lambda: os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK)), daemon=True).start()


def bitext(pipe, out):
    prefix = str(pipe.with_suffix(""))
    words = ["-s", "en", "-t", "de", "--trainpref", prefix, "--validpref", prefix, "--vocab-size", "9"]
    return prepare_bitext.main([*words, "--destdir", out])


def text(option):
    def prepare(pipe, out):
        other = str(pipe.with_suffix(".de"))
        files = {"--train": other, "--valid": other, **({option: str(pipe)} if option != "--dict" else {})}
        words = [word for pair in files.items() for word in pair] + ["--vocab-size", "9", "--destdir", out]
        return prepare_text.main([*words, *(["--dict", str(pipe)] if option == "--dict" else [])])

    return prepare


def task(pipe, out):
    folder = pipe.parent
    os.rename(pipe, folder / "train.tsv")
    (folder / "dict.txt").write_text("a 1\n")
    return prepare_task.main(["SST-2", str(folder), "--vocabulary", str(folder), "--destdir", out])


READERS = {
    "bitext": bitext,
    "training text": text("--train"),
    "validation text": text("--valid"),
    "dictionary": text("--dict"),
    "translations": lambda pipe, out: score.main([str(pipe), "--reference", str(pipe.with_suffix(".de"))]),
    "reference": lambda pipe, out: score.main([str(pipe.with_suffix(".de")), "--reference", str(pipe)]),
    "task": task,
}


@pytest.mark.parametrize("reader", READERS)
def test_pipes_are_refused(reader, pipe, tmp_path, capsys):
    assert READERS[reader](pipe, str(tmp_path / "out")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "is a pipe or a device, which can be read only once" in line


def test_writers_leave_pipes_and_links_in_place(pipe, tmp_path):
    for write in (
        lambda path: write_text(path, "new"),
        lambda path: check_writable(path, "--out"),
        lambda path: check_separate(path, "--out", []),
    ):
        with pytest.raises(InputError, match="pipe.en: it is a pipe or a device. Give the name of a file"):
            write(pipe)
    assert pipe.is_fifo() and len(list(tmp_path.iterdir())) == 2
    for target in (tmp_path / "pipe.de", tmp_path / "absent"):
        link = tmp_path / f"{target.name}-link"
        link.symlink_to(target.name)
        write_text(link, "new")
        assert link.is_symlink() and target.read_text() == "new"


LOG = Path(__file__).parents[1] / "report" / "logs" / "simple.log"


@pytest.mark.parametrize(
    "main, words",
    [
        (score.main, "other --reference other --output FILE --scores FILE"),
        (plot_alignments.main, "FILE --plot FILE"),
        (show.main, "FILE --text a --out FILE"),
        (show.main, "other --input FILE --out FILE"),
        (training.main, "FILE --out FILE"),
        (evaluate_task.main, "other --path FILE --predictions FILE"),
        (seeds.main, "listops other --out other --figure FILE --costs FILE"),
        (seeds.main, "listops other --out other --figure FILE --costs other --curves FILE"),
        (benchmark.main, "causal --json FILE --plot FILE"),
    ],
)
def test_an_output_replaces_no_input_and_no_other_output(main, words, tmp_path, capsys):
    path = shutil.copy(str(LOG), str(tmp_path / "file"))
    words = words.replace("FILE", path).replace("other", str(tmp_path / "other"))
    assert main(words.split()) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path} is a file that the command reads or writes for another option" in line
    assert Path(path).read_bytes() == LOG.read_bytes()
