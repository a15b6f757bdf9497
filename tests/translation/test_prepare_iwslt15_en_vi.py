"""IWSLT'15 English-Vietnamese: preparation of files with the published layout, recipes and refusals."""

import re

import pytest
from iwslt15_files import ENGLISH, VIETNAMESE, write_files

from fairseq.data import Dictionary, indexed_dataset
from luna_fairseq.errors import InputError
from luna_fairseq.text.bitext import check_bitext
from luna_fairseq.translation import prepare_iwslt15_en_vi as prepare
from luna_fairseq.translation.prepare_iwslt15_en_vi import PARTS


@pytest.fixture
def mirror(tmp_path):
    return write_files(tmp_path / "mirror")


@pytest.fixture
def run(tmp_path, mirror, capsys):
    def run(*more):
        words = ["--destdir", str(tmp_path / "out"), "--mirror", str(mirror), "--workers", "1"]
        status = prepare.main([*words, "--min-count", "2", "--max-length", "20", *more])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err and captured.err.count("\n") <= 1
        return status, captured.out + captured.err

    return run


def test_from_files_to_data(run, tmp_path, mirror):
    status, said = run()
    assert status == 0, said
    assert "train: 58 pairs, tokens: " in said and "train.en: 1 of " in said
    assert "1 dropped (more than 20 pieces), 1 dropped (an empty side)" in said
    assert "valid: 7 pairs" in said and "test: 5 pairs" in said
    out = tmp_path / "out"
    for language in ("en", "vi"):
        dictionary = Dictionary.load(str(out / f"dict.{language}.txt"))
        words = ENGLISH if language == "en" else VIETNAMESE
        assert set(words) <= set(dictionary.symbols) and "rare" not in dictionary.symbols
        assert len(dictionary) % 8 == 0
        for split, number in (("train", 58), ("valid", 7), ("test", 5)):
            data = indexed_dataset.make_dataset(str(out / f"{split}.en-vi.{language}"), "mmap")
            assert len(data) == number
        for split, name in (("valid", "tst2012"), ("test", "tst2013")):
            plain = (out / "plain" / f"{split}.{language}").read_bytes()
            assert plain == (mirror / f"{name}.{language}").read_bytes()
    assert run()[1].count("finished before") == 1
    assert "encode ..." in run("--min-count", "1")[1]
    assert "rare" in Dictionary.load(str(out / "dict.en.txt")).symbols


@pytest.mark.parametrize(
    "lost, words, message",
    [
        ("tst2012.vi", (), "tst2012.en has 7 lines and .*tst2012.vi has 6"),
        ("tst2013.en", (), "tst2013.en does not exist. Use --mirror with a folder that contains"),
        (None, ("--max-length", "2"), "--max-length and --max-ratio leave no training pair"),
        (None, ("--min-count", "999"), "No word occurs 999 times. Use a smaller --min-count"),
    ],
)
def test_what_cannot_be_prepared_is_one_line(run, mirror, lost, words, message):
    if lost == "tst2012.vi":  # its last line
        (mirror / lost).write_bytes((mirror / lost).read_bytes().strip().rpartition(b"\n")[0])
    elif lost:
        (mirror / lost).unlink()
    status, said = run(*words)
    assert status == 1 and re.search(message, said)


def test_other_files_are_not_taken_for_the_published_ones(tmp_path, mirror):
    mirror.rename(tmp_path / "archives")
    with pytest.raises(InputError, match="train.en .*60 .*133,317"):
        prefix = prepare.download("train", tmp_path / "archives", None)
        prepare.check_published({"train": check_bitext(prefix, "en", "vi", drop_empty=True)})
    assert [lines for _, lines in PARTS.values()] == [133317, 1553, 1268]
