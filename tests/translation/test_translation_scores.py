import json
from unittest.mock import Mock
from urllib.error import URLError

import pytest
import sacrebleu

from luna_fairseq.errors import InputError
from luna_fairseq.text.moses import detokenize, normalize, tokenize, tokenize_pairs
from luna_fairseq.translation import score
from luna_fairseq.translation import scores as translation_scores
from luna_fairseq.translation.generated import GenerateOutput
from luna_fairseq.translation.scores import KnownTestSet, Translations, plain_scores, split_score

REFERENCES = [
    "Ein Mann & sein Hund aus Nordrhein-Westfalen, sagte er.",
    "Die „E-Mail-Adresse“ ist z.B. 1.000,5 km lang.",
    "Er schläft im Garten [hinter] dem Haus.",
]
HYPOTHESES = [
    "Ein Mann & sein Hund aus Nordrhein-Westfalen, sagte sie.",
    "Die „E-Mail-Anschrift“ ist z.B. 1.000,5 km lang.",
    "Er schläft im Garten [hinter] dem Haus.",
]


def moses(line):
    return " ".join(tokenize(line, "de"))


def test_moses_tokens():
    assert moses(REFERENCES[0]) == "Ein Mann &amp; sein Hund aus Nordrhein @-@ Westfalen , sagte er ."
    assert moses(REFERENCES[1]) == "Die „ E @-@ Mail @-@ Adresse “ ist z.B. 1.000,5 km lang ."
    for line in (REFERENCES[0], REFERENCES[2]):
        assert detokenize(moses(line).split(), "de") == line
    assert normalize(" „Das“\twar\u2028es …\u200b", "de") == '"Das" war es ...'
    assert tokenize_pairs(("en", "de"), [("It's 5-fold.", "\u200b")]) == [("It &apos;s 5 @-@ fold .", "")]


@pytest.mark.parametrize(
    "codes, line, tokens",
    [
        (
            "en en-GB en_US eng EN",
            "It's the dogs' bone, isn't it?",
            "It &apos;s the dogs &apos; bone , isn &apos;t it ?",
        ),
        ("fr fr-CA fra fre", "L'été n'est pas là.", "L&apos; été n&apos; est pas là ."),
        ("it it-CH ita", "L'acqua dell'isola.", "L&apos; acqua dell&apos; isola ."),
    ],
)
def test_all_codes_of_a_language_have_its_rules(codes, line, tokens):
    for code in codes.split():
        assert " ".join(tokenize(normalize(line, code), code)) == tokens
        assert detokenize(tokens.split(), code) == normalize(line, code)


def test_the_fast_tokenizer_is_sacremoses_own():
    from sacremoses import MosesTokenizer

    own = MosesTokenizer(lang="de")
    for line in [*REFERENCES, "Am 3. Mai kam Dr. Müller. Wer? U.S.A. usw. Das war's... etc. und so"]:
        assert tokenize(line, "de") == own.tokenize(line, aggressive_dash_splits=True)


def test_hyphens_are_split_once_on_either_route():
    plain = Translations.read(HYPOTHESES, REFERENCES, None, "de")
    tokens = Translations.read([moses(line) for line in HYPOTHESES], REFERENCES, "moses", "de")
    ours, theirs = split_score(plain, "de"), split_score(tokens, "de")
    sides = [[moses(line) for line in lines] for lines in (HYPOTHESES, REFERENCES)]
    expected = sacrebleu.corpus_bleu(sides[0], [sides[1]], tokenize="none", force=True).score
    assert ours.value == theirs.value == pytest.approx(expected)
    assert ours.value != plain_scores(plain, "13a")[0].value
    assert "tok:none" in ours.signature and "sacremoses" in ours.signature
    assert tokens.hypotheses[0] == HYPOTHESES[0]


def test_splitting_references_twice_is_refused():
    text = Translations.read(HYPOTHESES, [moses(line) for line in REFERENCES], None, "de")
    with pytest.raises(InputError, match="^the reference is tokenized .*@-@ in 2 of 3 lines"):
        split_score(text, "de")
    assert plain_scores(text, "13a")[0].value > 0


def test_a_few_split_hyphens_in_plain_references_are_scored():
    lines = ["Ein Trennstrich wird zu @-@ und umgekehrt.", *REFERENCES * 3]
    assert split_score(Translations.read(lines, lines, None, "de"), "de").value == pytest.approx(100)


def test_hypotheses_of_moses_tokens_are_named(tmp_path, capsys):
    lines = "".join(f"H-{i}\t-0.1\t{moses(line)}\n" for i, line in enumerate(HYPOTHESES))
    (tmp_path / "generate.txt").write_text(lines, "utf-8")
    (tmp_path / "test.de").write_text("".join(f"{line}\n" for line in REFERENCES), "utf-8")
    words = [str(tmp_path / "generate.txt"), "--reference", str(tmp_path / "test.de")]
    assert score.main(words) == 0
    said = "note: the hypotheses are Moses tokens (@-@ in 2 of 3 lines)"
    assert said in capsys.readouterr().out
    assert score.main([*words, "--detokenize", "moses", "--target-lang", "de"]) == 0
    assert said not in capsys.readouterr().out


@pytest.mark.parametrize(
    "lines, tokens, split, message",
    [
        (3003, 0, (0, 0), "3 lines .*3,003.*--test-set none"),
        (3, 31, (0, 99), "13a.* 31"),
        (3, 32, (60, 70), "60 to 70 .*got 37"),
    ],
)
def test_another_reference_than_the_test_sets(lines, tokens, split, message):
    text = Translations.read(HYPOTHESES, REFERENCES, None, "de")
    test_set = KnownTestSet("toy", "en-de", lines, tokens, split)
    with pytest.raises(InputError, match=message):
        plain_scores(text, "13a", test_set)
        split_score(text, "de", test_set)


def test_files_and_signature(tmp_path, capsys, monkeypatch):
    toy = KnownTestSet("wmt14/full", "en-de", 3, 32, (37, 37))
    monkeypatch.setitem(translation_scores.TEST_SETS, "wmt14/full", toy)
    generated, reference = tmp_path / "generate.txt", tmp_path / "ref.de"
    lines = "".join(f"H-{i}\t-0.1\t{moses(line)}\n" for i, line in enumerate(HYPOTHESES))
    generated.write_text(lines, "utf-8")
    reference.write_text("".join(f"{line}\n" for line in REFERENCES), "utf-8")
    words = f"{generated} --reference {reference} --detokenize moses --split-compounds".split()
    more = f"--output {tmp_path}/out.de --scores {tmp_path}/scores.json --test-set wmt14/full".split()
    assert score.main(words) == 1
    assert "--target-lang" in capsys.readouterr().err
    assert score.main([*words, "--target-lang", "de", *more]) == 0
    out = capsys.readouterr().out
    assert out.count("|test:wmt14/full|lang:en-de|") == 2 and "BLEU of tokens, hyphens split = " in out
    assert (tmp_path / "out.de").read_text("utf-8").split("\n")[0] == HYPOTHESES[0]
    scores = json.loads((tmp_path / "scores.json").read_text("utf-8"))
    assert [one["name"] for one in scores] == ["BLEU", "chrF2", "BLEU of tokens"]
    assert GenerateOutput(generated).hypotheses(["a"] * 3)[0] == moses(HYPOTHESES[0])


@pytest.mark.parametrize("joined", [True, False])
def test_lines_that_are_detokenized_already(joined, tmp_path, capsys):
    """Only H- lines are Moses tokens with fairseq-generate --tokenizer, and pieces without --remove-bpe."""
    (tmp_path / "test.de").write_text("".join(f"{line}\n" for line in REFERENCES), "utf-8")
    tokens = [moses(line) for line in HYPOTHESES]
    pieces = (
        tokens if joined else [line.replace("sein", "se@@ in").replace(" km", " k@@ m") for line in tokens]
    )
    words = [str(tmp_path / "generate.txt"), "--reference", str(tmp_path / "test.de")]
    words += "--detokenize moses --target-lang de --split-compounds".split()
    printed = []
    for kinds in ({"H": tokens}, {"H": pieces, "D": HYPOTHESES}, {"H": pieces, "D": tokens}):
        lines = (f"{kind}-{n}\t-0.1\t{line}\n" for kind in kinds for n, line in enumerate(kinds[kind]))
        (tmp_path / "generate.txt").write_text("".join(lines), "utf-8")
        assert score.main(words) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] == printed[2] and "BLEU of tokens" in printed[0]


def test_a_tokenizer_whose_model_cannot_be_fetched(monkeypatch):
    monkeypatch.setattr(translation_scores, "BLEU", Mock(side_effect=URLError("no name")))
    with pytest.raises(InputError, match="^--tokenize spm.*no name"):
        plain_scores(Translations(["a"], ["a"]), "spm")
