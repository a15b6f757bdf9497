"""Demonstration corpus: its files, and its German sentences compared with sentences written by hand."""

import re
import subprocess
import sys
from pathlib import Path

import demo_corpus
import pytest

SCRIPT = Path(demo_corpus.__file__)
SIZES = ["--train", "1500", "--valid", "100", "--test", "100"]


def read(folder, name):
    return (folder / name).read_bytes().decode("utf-8").split("\n")[:-1]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "corpus"
    assert demo_corpus.main(["--destdir", str(folder), *SIZES]) == 0
    return folder


@pytest.mark.parametrize("language", ["en", "de"])
def test_no_sentence_occurs_twice_in_all_of_the_corpus(corpus, language):
    sentences = {split: read(corpus, f"{split}.{language}") for split in ("train", "valid", "test")}
    assert [len(lines) for lines in sentences.values()] == [1500, 100, 100]
    assert len(set().union(*sentences.values())) == 1700
    assert not list(corpus.glob("*.tmp"))


def test_held_out_sentences_depend_on_the_seed_and_not_on_the_training_size(corpus, tmp_path):
    demo_corpus.main(["--destdir", str(tmp_path / "small"), *SIZES, "--train", "10"])
    demo_corpus.main(["--destdir", str(tmp_path / "other"), *SIZES, "--seed", "2"])
    for name in ("test.en", "test.de", "valid.en", "valid.de"):
        assert (tmp_path / "small" / name).read_bytes() == (corpus / name).read_bytes()
        assert (tmp_path / "other" / name).read_bytes() != (corpus / name).read_bytes()
    assert read(tmp_path / "small", "train.de") == read(corpus, "train.de")[:10]


def test_an_english_sentence_has_one_german_wording_and_no_mark_of_the_tables_is_left():
    grammar, translations = demo_corpus.Grammar(7), {}
    for _ in range(3000):
        english, german = grammar.sentence()
        assert translations.setdefault(english, german) == german
        for text in (english, german):
            assert re.fullmatch(r"[A-ZÄÖÜ][a-zäöüß]*(,? [A-Za-zÄÖÜäöüß]+)+[.?]", text), text


def test_more_sentences_than_the_grammar_makes(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo_corpus.Grammar, "sentence", lambda self: ("Again.", "Wieder."))
    assert demo_corpus.main(["--destdir", str(tmp_path), "--train", "5", "--valid", "1", "--test", "1"]) == 1
    assert "does not have 7 different sentences" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert demo_corpus.main(["--destdir", str(tmp_path / "file" / "below"), *SIZES]) == 1
    assert "cannot write to" in capsys.readouterr().err


def test_runs_as_a_script(tmp_path):
    command = [sys.executable, str(SCRIPT), "--destdir", str(tmp_path), "--train", "0"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert "must be at least 1" in result.stderr and "Traceback" not in result.stderr


class Wanted:
    """Replacement of the random generator that draws given words, named by their English."""

    def __init__(self, words, plural):
        self.words, self.numbers = iter(words), iter([0.0 if plural else 1.0, 0.0 if words[2:] else 1.0])

    def random(self):
        return next(self.numbers)

    def choice(self, entries):
        word = next(self.words)
        return next(entry for entry in entries if entry.split(":")[0] == word)


DECLENSION = [
    ("dog the", "der Hund|den Hund|dem Hund"),
    ("dog the old", "der alte Hund|den alten Hund|dem alten Hund"),
    ("dog a old", "ein alter Hund|einen alten Hund|einem alten Hund"),
    ("dog his", "sein Hund|seinen Hund|seinem Hund"),
    ("cat the", "die Katze|die Katze|der Katze"),
    ("cat no small", "keine kleine Katze|keine kleine Katze|keiner kleinen Katze"),
    ("horse this big", "dieses große Pferd|dieses große Pferd|diesem großen Pferd"),
    ("horse her tired", "ihr müdes Pferd|ihr müdes Pferd|ihrem müden Pferd"),
    ("bear every young", "jeder junge Bär|jeden jungen Bären|jedem jungen Bären"),
    ("dogs the small", "die kleinen Hunde|die kleinen Hunde|den kleinen Hunden"),
    ("dogs  small", "kleine Hunde|kleine Hunde|kleinen Hunden"),
    ("dogs no small", "keine kleinen Hunde|keine kleinen Hunde|keinen kleinen Hunden"),
    ("dogs many small", "viele kleine Hunde|viele kleine Hunde|vielen kleinen Hunden"),
    ("dogs our", "unsere Hunde|unsere Hunde|unseren Hunden"),
    ("cats two sick", "zwei kranke Katzen|zwei kranke Katzen|zwei kranken Katzen"),
]


@pytest.mark.parametrize("words, forms", DECLENSION)
def test_declension(words, forms):
    noun, *rest = words.split(" ")
    grammar, made = demo_corpus.Grammar(1), []
    for case in ("nom", "acc", "dat"):
        grammar.random = Wanted([noun.rstrip("s"), *rest], plural=noun.endswith("s"))
        made.append(grammar.noun_phrase("animal", case, False))
    assert "|".join(phrase.german.strip() for phrase in made) == forms
    assert made[0].english == " ".join([*rest, noun]).replace("a old", "an old")
    assert made[0].agreement == ("p" if noun.endswith("s") else "3")


VERBS = {
    "kaufen": "kaufe kauft kaufen",
    "arbeiten": "arbeite arbeitet arbeiten",
    "finden": "finde findet finden",
    "lesen": "lese liest lesen",
    "wissen": "weiß weiß wissen",
    "werden": "werde wird werden",
}


@pytest.mark.parametrize("infinitive", VERBS)
def test_present(infinitive):
    third = "liest" if infinitive == "lesen" else ""
    made = [demo_corpus._inflect_verb(infinitive, third, agreement) for agreement in "13p"]
    assert " ".join(made) == VERBS[infinitive]


def test_word_order_of_a_clause_with_a_separable_verb():
    he, today = demo_corpus.Phrase("he", "er"), demo_corpus.Phrase("today", "heute")
    parts = {"early": "ihn", "late": "nicht", "end": "", "prefix": "an", "finite": "ruft"}
    english = {"auxiliary": "does", "verb": "call", "inflected": "calls", "rest": "him"}
    clause = demo_corpus.Clause(he, today, True, **english, **parts)
    finish = demo_corpus._finish_sentences
    assert finish(clause.english(), clause.german()) == (
        "He does not call him today.",
        "Er ruft ihn heute nicht an.",
    )
    assert finish(f"if {clause.english()}, I sing", f"wenn {clause.german_verb_final()}, singe ich") == (
        "If he does not call him today, I sing.",
        "Wenn er ihn heute nicht anruft, singe ich.",
    )
    past = clause._replace(finite="hat", prefix="", end="angerufen", negated=False, late="")
    assert finish(past.english_question() + "?", past.german_verb_first() + "?") == (
        "Does he call him today?",
        "Hat er ihn heute angerufen?",
    )
