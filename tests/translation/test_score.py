import io
import sys
from unittest.mock import Mock

import pytest
import sacrebleu

from luna_fairseq.commands.arguments import read_options
from luna_fairseq.files.scores import find_translation, read_scores
from luna_fairseq.translation import score, scores

REFERENCES = [
    "Der Mann kauft heute das alte Buch.",
    "Sie sieht den Hund, den er gefüttert hat.",
    "Er schläft im Garten hinter dem Haus.",
]
SOURCES = ["one", "two", "three"]
HYPOTHESES = [
    "Der Mann kauft heute das alte Buch.",
    "Sie sieht die Hunde, den er gefüttert hat.",
    "Er schläft im Garten unter dem Haus.",
]


def generated(hypotheses, order=(2, 0, 1), kinds="STHDP", shift=0, targets=REFERENCES):
    lines = ["2020-01-01 00:00:00 | INFO | fairseq_cli.generate | loading model(s) from x.pt"]
    for index in order:
        rows = {
            "S": f"S-{index + shift}\t{SOURCES[index]}",
            "T": f"T-{index + shift}\t{targets[index]}",
            "H": f"H-{index + shift}\t-0.25\t{hypotheses[index]}",
            "D": f"D-{index + shift}\t-0.25\t{hypotheses[index]}",
            "P": f"P-{index + shift}\t-0.1 -0.2",
        }
        lines += [rows[kind] for kind in kinds]
    return "\n".join([*lines, "Generate test with beam=5: BLEU4 = 50.00", ""])


@pytest.fixture
def run(tmp_path, capsys):
    def run(text, *options, references=REFERENCES):
        (tmp_path / "generate.txt").write_bytes(text.encode("utf-8"))
        (tmp_path / "test.de").write_bytes("".join(f"{line}\n" for line in references).encode("utf-8"))
        status = score.main(
            [str(tmp_path / "generate.txt"), "--reference", str(tmp_path / "test.de"), *options]
        )
        captured = capsys.readouterr()
        assert status == (1 if captured.err else 0)
        assert captured.err.count("\n") <= 1
        return captured.out + captured.err

    return run


def test_scores_are_those_of_sacrebleu_on_the_sentences_in_order(run):
    out = run(generated(HYPOTHESES))
    bleu = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    chrf = sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert 20 < bleu < 95
    assert f"BLEU = {bleu:.2f}" in out and f"chrF2 = {chrf:.2f}" in out
    assert "tok:13a" in out and "nc:6" in out
    assert "identical to the reference: 1 of 3" in out


def test_the_detokenised_line_counts_where_there_is_one(run):
    text = generated(HYPOTHESES).replace("H-0\t-0.25\tDer", "H-0\t-0.25\t\u2581Der")
    assert run(text) == run(generated(HYPOTHESES, kinds="TH"))


def test_the_first_of_several_hypotheses_counts(run):
    text = generated(HYPOTHESES).replace("P-0\t", "H-0\t-0.9\tfalsch\nD-0\t-0.9\tfalsch\nP-0\t")
    assert run(text) == run(generated(HYPOTHESES))


def test_output_and_samples(run, tmp_path):
    (tmp_path / "test.en").write_text("one\ntwo\nthree\n", encoding="utf-8")
    hypotheses = tmp_path / "hypotheses.de"
    words = ["--samples", "2", "--source", str(tmp_path / "test.en"), "--output", str(hypotheses)]
    out = run(generated(HYPOTHESES), *words)
    assert hypotheses.read_bytes().decode("utf-8").split("\n") == [*HYPOTHESES, ""]
    assert "[1]\n  source     one\n  hypothesis Der Mann" in out
    assert "[2]\n  source     two\n" in out and "[3]" not in out


@pytest.mark.parametrize("option", ["--output", "--scores"])
@pytest.mark.parametrize("name", ["generate.txt", "test.de", "test.en"])
def test_files_that_are_read_are_not_overwritten(option, name, run, tmp_path):
    (tmp_path / "test.en").write_text("one\ntwo\nthree\n", encoding="utf-8")
    out = run(generated(HYPOTHESES), "--source", str(tmp_path / "test.en"), option, str(tmp_path / name))
    assert out.startswith("luna-score: error: ") and f"{option} {tmp_path / name}" in out
    assert (tmp_path / name).read_text(encoding="utf-8").count("\n") >= 3


def test_empty_hypothesis_and_tabs_and_odd_separators(run, tmp_path):
    hypotheses = ["", "a\tb", "c\u2028d"]
    run(generated(hypotheses), "--output", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes().decode("utf-8").split("\n") == [*hypotheses, ""]


@pytest.mark.parametrize(
    "text, message",
    [
        (generated(HYPOTHESES, order=(0, 2)), "1 of 3 sentences"),
        (generated(HYPOTHESES, kinds="HD", shift=1), "sentence 3"),
        (generated(HYPOTHESES, order=(0, 1, 2, 0)), "sentence 0 twice"),
        (generated(HYPOTHESES)[:-60], "last line"),
        (generated(HYPOTHESES, kinds="S"), "no H- or D- lines"),
        ("", "no H- or D- lines"),
        *((generated(HYPOTHESES, kinds=kinds) * 2, "several runs") for kinds in ("STHDP", "HP", "H", "DP")),
        *(
            (generated(HYPOTHESES, targets=targets), "3 of 3 lines")
            for targets in (SOURCES, REFERENCES[1:] + REFERENCES[:1])
        ),
        *(
            (generated([line, "b", "c"]), "pieces of words")
            for line in ("\u2581Der \u2581Mann", "ein H@@ und")
        ),
    ],
)
def test_bad_input_is_one_line(run, text, message):
    assert message in run(text)


def test_sentences_that_are_missing(run):
    """Only a few can be a last batch that fairseq-generate left out."""
    text = generated(HYPOTHESES)
    assert "is another text: 3 of 3 lines differ" in run(text, references=["Ein Satz."] * 40)
    assert "--required-batch-size-multiple 1" in run(text, references=[*REFERENCES, *["Ein Satz."] * 7])
    out = run(text, references=[*REFERENCES, *["Ein Satz."] * 8])
    assert "lacks 8 of 11 sentences" in out and "Give the complete output" in out


def test_missing_files(run, tmp_path, capsys):
    assert score.main([str(tmp_path / "nothing"), "--reference", str(tmp_path / "nowhere")]) == 1
    assert "nowhere" in capsys.readouterr().err
    (tmp_path / "short.en").write_text("one\n")
    assert "short.en" in run(generated(HYPOTHESES), "--source", str(tmp_path / "short.en"))


def test_bleu_of_single_words(run):
    """8 of 8, 8 of 10 and 7 of 8 tokens occur in the references, which have the same lengths."""
    out = run(generated(HYPOTHESES), "--bleu-1")
    assert f"BLEU-1 = {100 * 23 / 26:.2f}" in out and "|order:1" in out
    assert "BLEU-1" not in run(generated(HYPOTHESES))


def test_other_text_without_references_in_the_file(run, tmp_path):
    """A wrong reference or source is refused, and a note names what could not be compared."""
    text = generated(HYPOTHESES, kinds="SHD")
    assert "is the source that" in run(text, references=SOURCES)
    assert "there are no T- lines" in run(text) and "note:" not in run(generated(HYPOTHESES))
    (tmp_path / "test.en").write_text("three\ntwo\none\n", encoding="utf-8")
    assert "2 of 3" in run(text, "--source", str(tmp_path / "test.en"))


@pytest.mark.parametrize(
    "target, said",
    [
        ("Der Mann kauft heute das al@@ te Buch .", None),  # pieces, tokens
        ("\u2581Der \u2581Mann\u2581kauft heute das alte Bu ch .", None),
        ("der mann kauft heute &quot; das @-@ alte &quot; buch .", None),
        ("Der Mann kauft <<unk>> das alte Buch.", "1 of 3 lines were not compared"),
    ],
)
def test_the_same_text_written_otherwise(run, target, said):
    out = run(generated(HYPOTHESES, targets=[target, *REFERENCES[1:]]))
    assert "BLEU = " in out and ("note:" in out) == (said is not None) and (said or "") in out


@pytest.mark.parametrize(
    "lower, said",
    [
        ("targets", "the T- lines of {}/generate.txt are in lower case and {}/test.de is not"),
        ("references", "{}/test.de is in lower case and the T- lines of {}/generate.txt are not"),
        ("both", None),
        ("neither", None),
    ],
)
def test_a_difference_in_case_is_said(lower, said, run, tmp_path):
    """BLEU distinguishes case, which the comparison with the T- lines does not."""
    lowered = [line.lower() for line in REFERENCES]
    targets = lowered if lower in ("targets", "both") else REFERENCES
    references = lowered if lower in ("references", "both") else REFERENCES
    out = run(generated(HYPOTHESES, targets=targets), references=references)
    assert "BLEU = " in out and ("note: " in out) == (said is not None)
    assert (said or "").format(tmp_path, tmp_path) in out


def test_a_corrected_reference_is_said(run):
    lines = [f"Satz {number}" for number in range(20)]
    text = "".join(f"T-{n}\t{line}\nH-{n}\t-1\t{line}\n" for n, line in enumerate(lines))
    assert "1 of 20 lines differ from the T- lines" in run(text, references=["Satz eins", *lines[1:]])


def test_lines_that_were_decoded_twice(run):
    """D- lines have no spaces if fairseq-generate has both --bpe and --remove-bpe sentencepiece."""
    text = "\n".join(
        line.replace(" ", "") if line.startswith("D-") else line for line in generated(HYPOTHESES).split("\n")
    )
    out = run(text)
    assert "decoded twice" in out and out.split("\n", 1)[1] == run(generated(HYPOTHESES))


ZH = ["今天天气很好。", "我昨天买了一本书。", "他在花园里睡觉。"]


@pytest.mark.parametrize("words, suffix", [(["--target-lang", "zh-Hans"], "txt"), ([], "zh")])
def test_chinese_is_scored_as_sacrebleu_does(words, suffix, tmp_path, capsys):
    hypotheses = ["今天天气好。", "我昨天买了一本书。", "他在屋子里睡觉。"]
    (tmp_path / "generate.txt").write_text(generated(hypotheses, targets=ZH), encoding="utf-8")
    (tmp_path / f"test.{suffix}").write_text("".join(f"{line}\n" for line in ZH), encoding="utf-8")
    words += [str(tmp_path / "generate.txt"), "--reference", str(tmp_path / f"test.{suffix}")]
    expected = sacrebleu.metrics.BLEU(trg_lang="zh").corpus_score(hypotheses, [ZH]).score
    for more, value in (([], expected), (["--tokenize", "13a"], None)):
        assert score.main([*words, *more]) == 0
        out = capsys.readouterr().out
        assert (f"BLEU = {expected:.2f}" in out) == (value is not None)
        assert (("tokenizer: zh" in out) and "tok:zh" in out) == (value is not None)


def test_a_language_without_spaces_and_a_tokenizer_that_is_not_installed(run, monkeypatch):
    assert "flores200" in run(generated(HYPOTHESES), "--target-lang", "th")
    monkeypatch.setattr(scores, "BLEU", Mock(side_effect=RuntimeError("MeCab"), TOKENIZER_DEFAULT="13a"))
    assert "sacrebleu[ja]" in run(generated(HYPOTHESES), "--target-lang", "ja")


class Closed(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


@pytest.mark.parametrize("kind", ["closed", "ascii"])
def test_files_are_written_whatever_the_terminal_does(kind, tmp_path, monkeypatch):
    (tmp_path / "generate.txt").write_text(generated(HYPOTHESES), encoding="utf-8")
    (tmp_path / "test.de").write_text("".join(f"{line}\n" for line in REFERENCES), encoding="utf-8")
    output = io.BytesIO()
    stream = Closed() if kind == "closed" else io.TextIOWrapper(output, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    words = [str(tmp_path / "generate.txt"), "--reference", str(tmp_path / "test.de"), "--samples", "3"]
    options = read_options(score.ScoreOptions, score.build_parser().parse_args(words))
    options.output, options.scores = tmp_path / "hypotheses.de", tmp_path / "scores.json"
    if kind == "closed":
        with pytest.raises(BrokenPipeError):
            score.score(options)
    else:
        files = ["--output", str(options.output), "--scores", str(options.scores)]
        assert score.main([*words, *files]) == 0
        stream.flush()
        assert b"gef?ttert" in output.getvalue()
    assert options.output.read_text(encoding="utf-8").split("\n")[1] == HYPOTHESES[1]
    found = read_scores(options.scores)
    assert [one["name"] for one in found] == ["BLEU", "chrF2"]
    path = tmp_path / "generate.txt"
    text = path.read_text(encoding="utf-8")
    for content, expected in ((text.replace("2020", "2021"), path), (text.replace("Hund", "Katze"), None)):
        path.write_text(content, encoding="utf-8")  # equal translations at another time, or others
        assert find_translation(found, tmp_path) == expected
