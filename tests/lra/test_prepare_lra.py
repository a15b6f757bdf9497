"""luna-prepare-lra on tiny archives with the published layout, and on damaged archives."""

import io
import json
import os
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from PIL import Image

from fairseq.data import Dictionary, data_utils
from luna_fairseq.files import sole_writer
from luna_fairseq.lra import prepare as prepare_lra

GENERATE = ["--train", "6", "--valid", "2", "--test", "3", "--workers", "1"]


def archive(folder, name, members):
    folder.mkdir(exist_ok=True)
    with tarfile.open(str(folder / name), "w:gz") as tar:
        for member, content in members.items():
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return folder


def prepare(task, tmp_path, *words, status=0):
    assert prepare_lra.main([task, "--destdir", str(tmp_path / "out"), *map(str, words)]) == status
    return tmp_path / "out"


def refused(capsys, task, tmp_path, *words):
    """Run a command that has to fail without creating the output folder, and return its error line."""
    assert not prepare(task, tmp_path, *words, status=1).exists()
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("luna-prepare-lra: error: ")
    return error


def sequences(folder, split):
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    dataset = data_utils.load_indexed_dataset(str(folder / split), dictionary)
    assert all(dataset[i][-1] == dictionary.eos() for i in range(len(dataset)))
    return [[dictionary[token] for token in dataset[i][:-1]] for i in range(len(dataset))]


def texts(folder, split):
    return [bytes(map(int, sequence)) for sequence in sequences(folder, split)]


def labels(folder, split):
    return [int(label) for (label,) in sequences(folder / "label-bin", split)]


def images(folder, split):
    lines = (folder / "label" / f"{split}.label").read_text().split()
    return np.load(str(folder / "input" / f"{split}.npy")), [int(line) for line in lines]


def test_listops(tmp_path, capsys):
    words = [*GENERATE, "--min-length", 5, "--max-length", 60]
    out = prepare("listops", tmp_path, *words)
    assert "listops, train: 6 examples (0: " in capsys.readouterr().out
    assert [len(sequences(out / "src-bin", split)) for split in ("train", "valid", "test")] == [6, 2, 3]
    from luna_fairseq.lra.listops import evaluate

    assert [evaluate(tokens) for tokens in sequences(out / "src-bin", "train")] == labels(out, "train")
    assert not (tmp_path / "out.tmp").exists()
    prepare("listops", tmp_path, *words)
    assert "finished before" in capsys.readouterr().out
    assert prepare_lra.main(["listops", "--destdir", str(out), *GENERATE, "--seed", "2"]) == 1
    assert "max_length, min_length, seed" in capsys.readouterr().err


def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "large").mkdir()
    (tmp_path / "out").symlink_to("large")
    out = prepare("listops", tmp_path, *GENERATE, "--min-length", 5, "--max-length", 60)
    assert out.is_symlink() and (tmp_path / "large" / "src-bin" / "train.bin").is_file()


@pytest.mark.parametrize("problem", ["working directory", "mount point", "not writable"])
def test_a_folder_that_cannot_be_replaced_is_refused_before_the_work(problem, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    out.mkdir()
    if problem == "working directory":
        monkeypatch.chdir(out)
    elif problem == "mount point":
        monkeypatch.setattr(os.path, "ismount", lambda path: path == out)
    else:
        monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    destdir = "." if problem == "working directory" else str(out)
    assert prepare_lra.main(["listops", "--destdir", destdir, *GENERATE]) == 1
    error = capsys.readouterr().err
    assert problem in error and error.count("\n") == 1 and not (tmp_path / "out.tmp").exists()


HOLD = """
import sys
from pathlib import Path
from luna_fairseq.files.writing import replacing_folder
with replacing_folder(Path(sys.argv[1])) as folder:
    (folder / "file").touch()
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_second_command_leaves_the_work_of_the_first(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sole_writer, "PATIENCE", 0.0)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "out")], **pipes) as first:
        assert "locked" in first.stdout.readline()
        words = [*GENERATE, "--min-length", 5, "--max-length", 60]
        assert "another process is writing" in refused(capsys, "listops", tmp_path, *words)
        assert (tmp_path / "out.tmp" / "file").exists()
        first.kill()
    prepare("listops", tmp_path, *words)
    assert not (tmp_path / "out" / "file").exists() and not (tmp_path / "out.tmp").exists()


def write_listops(folder, **content):
    folder.mkdir(exist_ok=True)
    for split in ("train", "val", "test"):
        lines = content.get(split, "( ( ( [MAX 3 ) 5 ) ] )\t5\n")
        (folder / f"basic_{split}.tsv").write_text("Source\tTarget\n" + lines)
    return folder


def test_published_listops(tmp_path, capsys):
    out = prepare("listops", tmp_path, "--mirror", write_listops(tmp_path / "m"))
    assert sequences(out / "src-bin", "valid") == [["[MAX", "3", "5", "]"]] and labels(out, "valid") == [5]
    prepare("listops", tmp_path, "--mirror", tmp_path / "m")
    assert "finished before" in capsys.readouterr().out
    write_listops(tmp_path / "m", test="[MAX 3 6 ]\t6\n")
    prepare("listops", tmp_path, "--mirror", tmp_path / "m", status=1)
    assert "other files" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line, message",
    [
        ("[MAX 3 5\t5\n", "basic_val.tsv, line 3"),
        ("[MAX 3 5 ]\t3\n", "basic_val.tsv, line 3: value '3', expected 5"),
        ("[MAX 3 5 ]\n", "basic_val.tsv, line 3: 1 columns"),
    ],
)
def test_refused_listops(tmp_path, capsys, line, message):
    mirror = write_listops(tmp_path / "m", val="[MIN 1 2 ]\t1\n" + line)
    assert message in refused(capsys, "listops", tmp_path, "--mirror", mirror)


@pytest.mark.parametrize(
    "task, words, option",
    [
        ("listops", ["--mirror", "m"], "--train 6"),
        ("listops", ["--mirror", "m"], "--min-length 5"),
        ("listops", GENERATE, "--archives m"),
        ("pathfinder32-regenerated", GENERATE, "--mirror m"),
        ("pathfinder32-regenerated", GENERATE, "--max-length 9"),
        ("text", ["--mirror", "m"], "--seed 1"),
        ("retrieval", ["--mirror", "m"], "--test 9"),
        ("image", ["--mirror", "m"], "--max-length 9"),
        ("pathfinder128", ["--mirror", "m"], "--valid 9"),
    ],
)
def test_options_that_a_task_does_not_read_are_refused(tmp_path, capsys, task, words, option):
    name, value = option.split()
    assert f"{name} has no effect on {task}" in refused(capsys, task, tmp_path, *words, name, value)


def test_text(tmp_path, capsys):
    members = {
        "aclImdb/train/pos/0_9.txt": "gut é".encode(),
        "aclImdb/train/neg/0_1.txt": b"bad",
        "aclImdb/train/unsup/0_0.txt": b"unused",
        "aclImdb/test/neg/0_2.txt": b"worse, and long",
    }
    mirror = archive(tmp_path / "m", "aclImdb_v1.tar.gz", members)
    out = prepare("text", tmp_path, "--mirror", mirror, "--max-length", 5)
    assert texts(out / "src-bin", "train") == [b"gut \xc3", b"bad"] and labels(out, "train") == [1, 0]
    assert texts(out / "src-bin", "valid") == texts(out / "src-bin", "test") == [b"worse"]
    assert len(Dictionary.load(str(out / "src-bin" / "dict.txt"))) == 4 + 256
    said = capsys.readouterr().out
    assert "the test set is also the validation set" in said
    assert "2 texts were cut to 5 bytes (--max-length), the longest of 15" in said


AAN = "lra_release/lra_release/tsv_data/new_aan_pairs."
PAIR = b"1.0\tA1\tB2\tone text\tanother\n"


def test_retrieval(tmp_path):
    members = {f"{AAN}{split}.tsv": PAIR + b"0\tA\tB\tx\ty\n" for split in ("train", "eval", "test")}
    out = prepare("retrieval", tmp_path, "--mirror", archive(tmp_path / "m", "lra_release.gz", members))
    assert texts(out / "src-bin", "valid") == [b"one text", b"x"]
    assert texts(out / "src1-bin", "valid") == [b"another", b"y"] and labels(out, "valid") == [1, 0]


def cifar_record(label, red, green, blue):
    return bytes([label]) + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


def cifar_members(**changes):
    black_and_white = ((n, [cifar_record(n, *[value] * 3) for value in (0, 255)]) for n in range(1, 6))
    members = {f"data_batch_{n}": b"".join(records) for n, records in black_and_white}
    colours = ((9, 255, 0, 0), (0, 0, 255, 0), (1, 0, 0, 255))
    members["test_batch"] = b"".join(cifar_record(*colour) for colour in colours)
    return {f"cifar-10-batches-bin/{name}.bin": data for name, data in {**members, **changes}.items()}


def test_image(tmp_path):
    mirror = archive(tmp_path / "m", "cifar-10-binary.tar.gz", cifar_members())
    out = prepare("image", tmp_path, "--mirror", mirror)
    pixels, classes = images(out, "train")
    assert pixels.shape == (9, 1024) and classes == [1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert images(out, "valid")[1] == [5]  # the last tenth of the training images
    # tf.image.rgb_to_grayscale of red, green, blue
    assert images(out, "test")[0][:, 0].tolist() == [76, 149, 29]
    assert not list((out / "input").glob("*.raw"))


def png(side, value):
    content = io.BytesIO()
    Image.new("L", (side, side), value).save(content, "png")
    return content.getvalue()


def pathfinder_members(side=32, **changes):
    root = f"lra_release/lra_release/pathfinder{side}/curv_contour_length_14/"
    members = {root + f"imgs/0/sample_{n}.png": png(side, n) for n in range(20)}
    members[root + "imgs/0/sample_20.png"] = b""
    lines = [f"imgs/0 sample_{n}.png {n} {n % 2} more 1.0" for n in range(21)]
    members[root + "metadata/0.npy"] = ("\n".join(lines) + "\n").encode()
    members[root.replace("14", "9") + "imgs/0/sample_0.png"] = png(side, 99)
    return {**members, **{root + name: content for name, content in changes.items()}}


@pytest.mark.parametrize("side", [32, 128])
def test_pathfinder(tmp_path, side):
    mirror = archive(tmp_path / "m", "lra_release.gz", pathfinder_members(side))
    out = prepare(f"pathfinder{side}", tmp_path, "--mirror", mirror)
    seen = []
    for split, number in (("train", 16), ("valid", 2), ("test", 2)):
        pixels, classes = images(out, split)
        assert pixels.shape == (number, side * side)
        assert (pixels[:, 0] % 2).tolist() == classes and (pixels == pixels[:, :1]).all()
        seen += pixels[:, 0].tolist()
    assert sorted(seen) == list(range(20)) != seen
    names = ["checksums.sha256", "input", "label", "prepare_lra.json"]
    assert sorted(path.name for path in out.iterdir()) == names


SAMPLE, METADATA = "imgs/0/sample_3.png", "metadata/1.npy"
SHORT_HEADER = png(32, 3).replace(b"\0\0\0\rIHDR", b"\0\0\0\x05IHDR")
OUTSIDE = cifar_record(1, 0, 0, 0) + cifar_record(10, 0, 0, 0)


@pytest.mark.parametrize(
    "task, change, message",
    [
        ("retrieval", b"1\tA\tB\tx\n", "2: 4 columns"),
        ("retrieval", b"1\tA\tB\tx\t\n", "2: text2"),
        ("retrieval", b"2\tA\tB\tx\ty\n", "2: label '2'"),
        ("image", b"123", ": 3 bytes"),
        ("image", OUTSIDE, ", image 2: label 10"),
        ("pathfinder32", (SAMPLE, png(31, 0)), f"{SAMPLE}: 31 x 31"),
        ("pathfinder32", (SAMPLE, b"junk"), SAMPLE),
        ("pathfinder32", (SAMPLE, SHORT_HEADER), SAMPLE),
        ("pathfinder32", (METADATA, b"imgs/7 no.png 0 1"), "line 1: imgs/7/no.png"),
        ("pathfinder32", (METADATA, b"imgs/0 sample_0.png 0 2"), "line 1: 'imgs/0 sample_0.png 0 2'"),
    ],
)
def test_refused_archives(tmp_path, capsys, task, change, message):
    name = "cifar-10-binary.tar.gz" if task == "image" else "lra_release.gz"
    if task == "retrieval":
        members, message = {f"{AAN}train.tsv": PAIR + change}, f"{name}, {AAN}train.tsv, line {message}"
    elif task == "image":
        members, message = cifar_members(data_batch_2=change), f"data_batch_2.bin{message}"
    else:
        members = pathfinder_members(**dict([change]))
    mirror = archive(tmp_path / "m", name, members)
    assert message in refused(capsys, task, tmp_path, "--mirror", mirror)


def test_regenerated_pathfinder_says_so(tmp_path, capsys):
    out = prepare("pathfinder32-regenerated", tmp_path, *GENERATE)
    assert "images drawn by this command, not the published images" in capsys.readouterr().out
    assert images(out, "train")[0].shape == (6, 1024)
    (step,) = json.loads((out / "prepare_lra.json").read_text()).values()
    sizes = {"train": 6, "valid": 2, "test": 3}
    assert step["facts"]["settings"] == {"task": "pathfinder32-regenerated", "seed": 1, **sizes}


def test_incomplete_archive(tmp_path, capsys):
    mirror = archive(tmp_path / "m", "cifar-10-binary.tar.gz", cifar_members())
    path = mirror / "cifar-10-binary.tar.gz"
    path.write_bytes(path.read_bytes()[:-20])
    assert "is damaged or incomplete" in refused(capsys, "image", tmp_path, "--mirror", mirror)
    mirror = archive(tmp_path / "m", "cifar-10-binary.tar.gz", {"README": b"other"})
    assert "no examples for train, valid, test" in refused(capsys, "image", tmp_path, "--mirror", mirror)
