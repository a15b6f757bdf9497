"""Translations of several runs: samples, BLEU by length, and scores."""

import os

import pytest
import sacrebleu
from training_logs import write_translations

from luna_fairseq.report.training import _describe_score
from luna_fairseq.report.translations import bleu_by_length, choose_samples, read_generated, read_translations

REFERENCES = [f"the cat number {number} sat on the mat" + " again" * (number % 25) for number in range(80)]
SOURCES = [f"die Katze {number} saß auf der Matte" + " wieder" * (number % 25) for number in range(80)]


def translated(folder, hypotheses, sources=SOURCES, references=REFERENCES):
    folder.mkdir(exist_ok=True)
    write_translations(folder, hypotheses, sources, references)
    return read_translations(folder)


@pytest.fixture
def two(tmp_path):
    worse = [
        text.replace("cat", "dog") if number % 7 == 0 else text for number, text in enumerate(REFERENCES)
    ]
    worse[33] = "nothing"
    return [translated(tmp_path / "good", REFERENCES), translated(tmp_path / "bad", worse)]


def test_the_largest_difference_comes_first(two):
    rows = choose_samples(two, 80)
    assert len(rows) == 80 and rows[0]["source"] == SOURCES[33]
    assert rows[0]["runs"][0] == [REFERENCES[33], 100.0]
    differences = [row["runs"][0][1] - row["runs"][1][1] for row in rows]
    assert differences == sorted(differences, reverse=True)
    assert len(choose_samples(two, 10)) == 10


def test_with_one_run_the_worst_sentence_comes_first(two):
    assert choose_samples(two[1:], 80)[0]["runs"][0][0] == "nothing"


def test_bleu_by_length_is_sacrebleus(two):
    rows = {row["words"]: row["runs"] for row in bleu_by_length(two)}
    hypotheses = [sentence.hypothesis for sentence in two[1].sentences.values()]
    bleu = sacrebleu.corpus_bleu(hypotheses, [REFERENCES])
    assert rows["all"][1] == [80, round(bleu.score, 2), round(bleu.sys_len / bleu.ref_len, 3)]
    assert rows["all"][0][1] == pytest.approx(100)
    assert sum(runs[0][0] for words, runs in rows.items() if words != "all") <= 80
    assert set(rows) == {"11–20", "21–30", "all"} or set(rows) == {"1–10", "11–20", "21–30", "all"}


def test_runs_on_different_text_are_not_mixed(two, tmp_path):
    other = translated(tmp_path / "other", ["x"], ["anderer Satz"], ["another sentence"])
    rows = choose_samples([*two, other], 100)
    assert len(rows) == 80 and all(row["runs"][2] is None for row in rows)


def test_a_run_without_translations():
    assert choose_samples([], 5) == [] and bleu_by_length([]) == []


def test_sentences_without_a_reference_or_hypothesis_are_skipped(tmp_path):
    path = tmp_path / "generate.txt"
    text = "S-0\tein\nT-0\ta\nH-0\t-1\ta @@b\nD-0\t-1\ta b\nD-0\t-2\tworse\nS-1\tzwei\nH-1\t-1\tt"
    path.write_text(text, encoding="utf-8")
    assert read_generated(path) == ({0: ("ein", "a", "a b")}, "")


def test_scores_with_their_signature(two, tmp_path):
    (score,) = two[0].scores
    assert (score["value"], score["signature"]) == (27.3, "nrefs:1|case:mixed|tok:13a")
    assert _describe_score(score) == "BLEU: nrefs:1|case:mixed|tok:13a (averaged.pt, beam 5, lenpen 1.0)"
    (tmp_path / "good" / "scores.json").write_text("{damaged", encoding="utf-8")
    assert read_translations(tmp_path / "good").scores == []
    assert "scores.json" in read_translations(tmp_path / "good").note


def test_the_translation_that_was_scored_is_shown(two, tmp_path):
    """Translations of another length penalty may be newer, and the scored file may be written again."""
    folder = tmp_path / "good"
    newer = folder / "generate-test-lenpen0.4.txt"
    newer.write_text("S-0\ta\nT-0\tb\nH-0\t-1\tnewer\n", encoding="utf-8")
    os.utime(str(newer), (2e9, 2e9))
    another_text = folder / "generate-test1-lenpen0.4.txt"
    another_text.write_text(newer.read_text(encoding="utf-8").replace("newer", "another text"))
    os.utime(str(another_text), (3e9, 3e9))
    found = read_translations(folder)
    assert len(found.sentences) == 80 and len(found.scores) == 1 and not found.note
    scored = folder / "generate-test-lenpen1.txt"
    scored.write_text(scored.read_text(encoding="utf-8").replace("cat", "dog"), encoding="utf-8")
    found = read_translations(folder)
    assert found.sentences[0].hypothesis == "newer" and not found.scores and newer.name in found.note


def test_bleu_by_length_of_chinese(tmp_path):
    lines = ["今天天气很好。", "我昨天买了一本书。"] * 15
    hypotheses = ["今天天气好。", "我昨天买了一本书。"] * 15
    found = translated(tmp_path / "zh", hypotheses, lines, lines)
    assert bleu_by_length([found])[-1]["runs"][0][1] < 60  # the tokenizer is 13a, which divides nothing
    found = read_translations(tmp_path / "zh", "zh")
    expected = sacrebleu.metrics.BLEU(tokenize="zh").corpus_score(hypotheses, [lines]).score
    assert bleu_by_length([found])[-1]["runs"][0][1] == round(expected, 2)
