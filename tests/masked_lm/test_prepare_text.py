"""luna-prepare-text: binarised shards from raw text, with sentencepiece and with GPT-2's encoding."""

import json
import os

import pytest

from fairseq.data import Dictionary, data_utils
from luna_fairseq.masked_lm import prepare_task, prepare_text
from luna_fairseq.models.tokenizers import find_tokenizer

DOCUMENTS = [
    ["the cat sat on the mat", "it was a red cat"],
    ["a dog ran"],
    ["the dog sat", "a mat ran"],
    ["red dog"],
]


@pytest.fixture
def text(tmp_path):
    """Folder with training and validation text, whose documents are separated by empty lines."""
    for split, times in (("train", 5), ("valid", 1)):
        documents = ["".join(line + "\n" for line in document) for document in DOCUMENTS * times]
        (tmp_path / split).write_text("\n".join(documents), encoding="utf-8")
    return tmp_path


def write_gpt2(folder):
    """Write GPT-2's files of a byte-pair encoding with characters and one merge."""
    pieces = [*sorted(set("".join(sum(DOCUMENTS, [])).replace(" ", "\u0120"))), "th"]
    (folder / "encoder.json").write_text(json.dumps({p: i for i, p in enumerate(pieces)}), encoding="utf-8")
    (folder / "vocab.bpe").write_text("#version\nt h\n", encoding="utf-8")
    return len(pieces)


def prepare(text, *words):
    arguments = f"--train {text}/train --valid {text}/valid --destdir {text}/data --workers 1".split()
    return prepare_text.main([*arguments, *map(str, words)])


def sentences(folder, split="train"):
    """Return the binarised lines as pieces."""
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    dataset = data_utils.load_indexed_dataset(str(folder / split), dictionary)
    return [dictionary.string(dataset[i]).split() for i in range(len(dataset))]


def words_of(pieces):
    return "".join(pieces).replace("\u2581", " ").strip()


def test_sentencepiece_in_shards(text, capsys):
    assert prepare(text, "--vocab-size", 40, "--shards", 3) == 0
    out = capsys.readouterr().out
    data = text / "data"
    assert out.strip().endswith(os.pathsep.join(str(data / f"shard{n}") for n in range(3)))
    found = []
    for n in range(3):
        found.append([words_of(pieces) for pieces in sentences(data / f"shard{n}")])
        assert (data / f"shard{n}" / "dict.txt").read_bytes() == (data / "dict.txt").read_bytes()
    dealt = [[] for _ in range(3)]
    for number, document in enumerate(DOCUMENTS * 5):
        dealt[number % 3] += [*document, ""]
    assert [list(filter(None, shard)) for shard in found] == [list(filter(None, shard)) for shard in dealt]
    assert found[0][2] == ""  # between two documents
    assert [words_of(p) for p in sentences(data / "shard0", "valid") if p] == sum(DOCUMENTS, [])
    assert find_tokenizer([data])["bpe"] == "sentencepiece"

    before = (data / "shard1" / "train.bin").stat().st_mtime_ns
    assert prepare(text, "--vocab-size", 40, "--shards", 3) == 0
    assert capsys.readouterr().out.count("finished before") == 2
    assert (data / "shard1" / "train.bin").stat().st_mtime_ns == before


def test_gpt2(text):
    size = write_gpt2(text)
    files = ("--gpt2-encoder-json", text / "encoder.json", "--gpt2-vocab-bpe", text / "vocab.bpe")
    assert prepare(text, *files) == 0
    data = text / "data"
    assert len(Dictionary.load(str(data / "dict.txt"))) == -(-(size + 4) // 8) * 8
    assert find_tokenizer([data])["bpe"] == "gpt2"
    merged = str(size - 1)
    assert sentences(data)[0][0] == merged and sentences(data)[0].count(merged) == 2


@pytest.mark.parametrize(
    "words, message",
    [
        (("--vocab-size", 40, "--shards", 21), "20 documents"),
        (("--vocab-size", 4000), "--vocab-size 4000"),
        ((), "--vocab-size N"),
        (("--gpt2-vocab-bpe", "vocab.bpe"), "--gpt2-encoder-json"),
        (("--vocab-size", 40, "--test", "nowhere"), "nowhere"),
        (("--vocab-size", 40, "--test", os.devnull), "/dev/null"),
    ],
)
def test_bad_input(words, message, text, capsys):
    assert prepare(text, *words) == 1
    error = capsys.readouterr().err
    assert message in error and error.startswith("luna-prepare-text: error: ") and error.count("\n") == 1


def test_a_line_that_is_not_utf8(text, capsys):
    (text / "valid").write_bytes(b"good\nb\xffad\n")
    assert prepare(text, "--vocab-size", 40) == 1
    assert f"{text / 'valid'}, line 2" in capsys.readouterr().err


def test_what_is_read_as_a_space_is_counted(text, capsys):
    with (text / "train").open("a", encoding="utf-8") as file:
        file.write("a\u2581dog\nthe\x01cat\n")
    assert prepare(text, "--vocab-size", 40) == 0
    expected = f"train: control characters or U+2581 in 2 lines of {text / 'train'} were read as spaces"
    assert expected in capsys.readouterr().out


def test_checksums_of_another_program_are_kept(text, capsys):
    """The folder of a pretrained model's data is refused as the folder of a task."""
    (text / "data").mkdir()
    (text / "data" / "checksums.sha256").write_text("mine\n")
    assert prepare(text, "--vocab-size", 40) == 1
    assert (text / "data" / "checksums.sha256").read_text() == "mine\n"
    (text / "data" / "checksums.sha256").unlink()
    assert prepare(text, "--vocab-size", 40) == 0
    before = (text / "data" / "checksums.sha256").read_bytes()
    for split in ("train", "dev"):
        (text / f"{split}.tsv").write_text("sentence\tlabel\nthe cat\t1\na dog\t0\n", encoding="utf-8")
    words = ["SST-2", str(text), "--vocabulary", str(text / "data"), "--destdir", str(text / "data")]
    assert prepare_task.main([*words, "--workers", "1"]) == 1
    assert "checksums.sha256 already exists" in capsys.readouterr().err
    assert (text / "data" / "checksums.sha256").read_bytes() == before


def test_unknown_tokens_of_a_task_are_compared_at_every_start(text, capsys):
    assert prepare(text, "--vocab-size", 40) == 0
    for split, number in (("train", 20), ("dev", 4)):
        lines = ["sentence\tlabel", *("the cat\t1", "今日\t0") * number]
        (text / f"{split}.tsv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    words = ["SST-2", str(text), "--vocabulary", str(text / "data"), "--destdir", str(text / "bin")]
    for percent, status in ((1, 1), (80, 0), (1, 1), (80, 0)):
        capsys.readouterr()
        assert prepare_task.main([*words, "--workers", "1", "--max-unknown", str(percent)]) == status
        said = capsys.readouterr()
        assert "unknown" in (said.err if status else said.out)


def test_what_fairseq_does_at_long_lines_of_each_split(text, capsys):
    for split in ("train", "valid"):
        with open(text / split, "a", encoding="utf-8") as file:
            file.write("a red mat " * 300 + "\n")
    assert prepare(text, "--vocab-size", 40) == 0
    out = capsys.readouterr().out
    assert "train: 1 lines have 511 pieces or more" in out and "fairseq skips these lines" in out
    assert "valid: 1 lines have 511 pieces or more" in out
    assert "fairseq stops at these lines without --skip-invalid-size-inputs-valid-test" in out
