"""luna-make-shortlist: the lexical model and the shortlist file."""

import itertools

import numpy as np
import pytest
import torch

from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from luna_fairseq.text.lexicon import read_lexicon
from luna_fairseq.translation import make_shortlist
from luna_fairseq.translation.lexical_model import ITERATIONS, train_lexical_model

EOS = 2


def by_definition(pairs):
    """Return {(source, target): probability} by Brown et al.'s sums over word alignments."""
    words = {(s, t) for source, target in pairs for s, t in itertools.product(source, target)}
    p = dict.fromkeys(words, 1.0)
    for _ in range(ITERATIONS):
        expected = dict.fromkeys(words, 0.0)
        for source, target in pairs:
            for t in target:
                total = sum(p[s, t] for s in set(source))
                for s in set(source):
                    expected[s, t] += p[s, t] / total
        norms = {s: sum(x for (other, _), x in expected.items() if other == s) for s, _ in words}
        p = {(s, t): x / norms[s] for (s, t), x in expected.items()}
    return p


def test_the_lexical_model_is_ibm_model_1():
    draw = np.random.RandomState(1)
    pairs = [(draw.randint(4, 12, n), draw.randint(4, 15, m)) for n, m in draw.randint(1, 7, (30, 2))]
    model = train_lexical_model(pairs, target_size=15)
    found = {(s, t): p for s, t, p in zip(*map(np.ndarray.tolist, model))}
    expected = by_definition([(s.tolist(), t.tolist()) for s, t in pairs])
    assert found == pytest.approx(expected)
    assert len(found) == len(model.sources)  # no pair twice
    for source in range(4, 12):
        ranked = sorted((-p, t) for (s, t), p in found.items() if s == source)
        assert model.best(source, 3).tolist() == [t for _, t in ranked[:3]]
    assert not len(model.best(3, 5)) and not len(model.best(14, 5))


def test_without_pairs_there_is_no_translation():
    assert not len(train_lexical_model([], 9).best(4, 5))


def write_data(folder, name, sides):
    """Binarise {language: lines} with one dictionary for each language, and return the dictionaries."""
    found = {}
    for language, lines in sides.items():
        path = folder / f"dict.{language}.txt"
        words = Dictionary()
        if path.exists():
            words = Dictionary.load(str(path))
        else:
            for word in sorted(set(" ".join(lines).split())):
                words.add_symbol(word)
            words.save(str(path))
        builder = MMapIndexedDatasetBuilder(str(folder / f"{name}.{language}.bin"), dtype=np.int32)
        for line in lines:
            builder.add_item(words.encode_line(line, add_if_not_exist=False).to(torch.int32))
        builder.finalize(str(folder / f"{name}.{language}.idx"))
        found[language] = words
    return found


SOURCE = ["a dog sleeps", "a cat sleeps", "a dog eats", "the cat eats 7", "the dog sleeps"]
TARGET = [
    "ein Hund schläft",
    "eine Katze schläft",
    "ein Hund frisst",
    "die Katze frisst 7",
    "der Hund schläft",
]


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    write_data(folder, "train.en-de", {"en": SOURCE * 3, "de": TARGET * 3})
    write_data(
        folder, "valid.en-de", {"en": ["the dog eats", "a cat 7"], "de": ["der Hund frisst", "eine 7"]}
    )
    return folder


def make(folder, *words):
    output = folder.parent / "shortlist"
    status = make_shortlist.main([str(folder), "--output", str(output), *words])
    return status, output


def test_the_file_holds_the_best_translations_the_common_pieces_and_the_piece_itself(data, capsys):
    status, output = make(data, "--best", "1", "--common", "2")
    assert not status
    found = read_lexicon(output).candidates
    languages, source, target = read_lexicon(output)[1:]
    assert languages == "en-de" and source.startswith("11-") and target.startswith("13-")
    assert found.pop("") == ["Hund", "schläft"]
    pairs = {"dog": ["Hund"], "cat": ["Katze"], "eats": ["frisst"], "sleeps": ["schläft"], "7": ["7"]}
    assert {name: found[name] for name in pairs} == pairs
    # Every source piece has a line, and so does the end-of-sentence symbol, the empty word.
    assert set(found) == {*" ".join(SOURCE).split(), "</s>"}
    text = capsys.readouterr().out
    assert "6 source pieces" not in text and "8 source pieces with up to 1 candidates" in text
    assert "from 15 of 15 pairs" in text
    # No source piece has "der" as a frequent translation. Hund, frisst, 7 and two </s> are candidates.
    assert "% of 7 target pieces are candidates" in text


def test_a_source_piece_is_its_own_candidate_if_it_is_a_target_piece(data):
    (data / "dict.de.txt").unlink()
    (data / "dict.en.txt").unlink()
    lines = ["Bonn sleeps", "Bonn eats", "Rome sleeps"]
    targets = ["schläft schläft Bonn", "frisst frisst Bonn", "schläft schläft"]
    write_data(data, "train.en-de", {"en": lines, "de": targets})
    for path in data.glob("valid*"):
        path.unlink()
    assert make(data, "--best", "1", "--common", "1")[0] == 0
    found = read_lexicon(data.parent / "shortlist").candidates
    assert "Bonn" in found["Bonn"] and len(found["Bonn"]) <= 2
    assert found["Rome"] == ["schläft"]


def test_a_part_of_the_pairs_is_spread_over_the_text(data, capsys):
    status, output = make(data, "--sentences", "3")
    assert not status and "from 3 of 15 pairs" in capsys.readouterr().out
    assert len(read_lexicon(output).candidates) == 1 + 1 + len(
        {*SOURCE[0].split()}
    )  # lines 0, 5 and 10 are the same


def test_every_shard_and_every_continuation_of_the_text_is_read(tmp_path, capsys):
    """Pairs beyond the first shard, and in train1, have candidates, too."""
    folder, dictionaries = tmp_path / "data", {"en": SOURCE, "de": TARGET}
    for number in (0, 1, 10):
        (folder / f"shard{number}").mkdir(parents=True)
        write_data(folder / f"shard{number}", "dictionary", dictionaries)
    write_data(folder / "shard0", "train.en-de", {"en": SOURCE[:1], "de": TARGET[:1]})
    write_data(folder / "shard0", "train1.en-de", {"en": SOURCE[1:2], "de": TARGET[1:2]})
    write_data(folder / "shard1", "train.en-de", {"en": SOURCE[2:4], "de": TARGET[2:4]})
    write_data(folder / "shard10", "train.en-de", {"en": SOURCE[4:], "de": TARGET[4:]})
    status, output = make(folder)
    assert not status and "from 5 of 5 pairs" in capsys.readouterr().out
    assert {*read_lexicon(output).candidates} == {"", "</s>", *" ".join(SOURCE).split()}
    dictionary = folder / "dict.en.txt"  # luna-prepare-bitext also writes the dictionaries here
    dictionary.write_bytes((folder / "shard0" / "dict.en.txt").read_bytes())
    assert make_shortlist.main([str(folder), "--output", str(dictionary)]) == 1


def test_document_pieces_are_left_out_and_their_separator_is_a_candidate(data, capsys):
    """A piece repeats its sentences, and needs memory that grows with the square of its length."""
    assert make(data)[0] == 0
    expected = {**read_lexicon(data.parent / "shortlist").candidates}
    for path in data.iterdir():
        path.unlink()
    joined = [" <sep> ".join(lines) for lines in (SOURCE, TARGET)]
    write_data(data, "train.en-de", {"en": [joined[0], *SOURCE] * 3, "de": [joined[1], *TARGET] * 3})
    capsys.readouterr()
    status, output = make(data)
    assert not status and "from 15 of 15 pairs" in capsys.readouterr().out
    found = {**read_lexicon(output).candidates}
    assert found.pop("") == [*expected.pop(""), "<sep>"] and found == expected


def test_text_of_document_pieces_alone(data, capsys):
    for path in data.iterdir():
        path.unlink()
    joined = [" <sep> ".join(lines) for lines in (SOURCE, TARGET)]
    write_data(data, "train.en-de", {"en": joined[:1], "de": joined[1:]})
    status, output = make(data)
    assert not status and "from 1 of 1 pairs" in capsys.readouterr().out
    assert read_lexicon(output).candidates[""].count("<sep>") == 1


@pytest.mark.parametrize("words", [["-s", "en"], ["-t", "de"], ["-s", "en", "-t", "de"]])
def test_languages_may_be_given(words, data):
    assert make(data, *words)[0] == 0


def test_the_other_direction(data):
    status, output = make(data, "-s", "de", "-t", "en", "--best", "1")
    assert not status and read_lexicon(output).candidates["Hund"] == ["dog"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["-s", "fr"], "holds the training text of en-de. Give these languages"),
        (["-s", "en", "-t", "fr"], "holds the training text of en-de. Give these languages with -s and -t"),
    ],
)
def test_other_languages_are_refused(words, message, data, capsys):
    status, output = make(data, *words)
    assert status == 1 and not output.exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_folder_without_training_text_is_refused(tmp_path, capsys):
    status, output = make(tmp_path / "empty")
    assert status == 1 and not output.exists()
    assert "holds no training text" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["dict.de.txt", "train.en-de.en.bin", "valid.en-de.de.idx"])
def test_a_file_of_the_data_is_not_overwritten(name, data, capsys):
    before = (data / name).read_bytes()
    assert make_shortlist.main([str(data), "--output", str(data / name)]) == 1
    assert f"--output {data / name} is a file that the command reads" in capsys.readouterr().err
    assert (data / name).read_bytes() == before
