"""Checks and options of luna-evaluate, without a model."""

import json
import sys
from hashlib import sha256

import numpy as np
import pytest

from luna_fairseq.commands.arguments import read_options
from luna_fairseq.errors import InputError
from luna_fairseq.text.subword import SUBWORD_METHODS
from luna_fairseq.translation import evaluate, evaluation

KINDS = (("S", "x "), ("T", ""), ("H", "-0.1\t"))  # lines of fairseq-generate, and their beginnings


@pytest.fixture
def data(tmp_path):
    """Folder with the files by which luna-evaluate recognises a prepared data folder."""
    folder = tmp_path / "data"
    (folder / "plain").mkdir(parents=True)
    names = ["train.en-de.en.idx", "dict.en.txt", "dict.de.txt", "checkpoint.pt"]
    for name in (SUBWORD_METHODS["sentencepiece"].model_file, *names):
        (folder / name).touch()
    return folder


def evaluate_with(words, extra=()):
    args = evaluate.build_parser().parse_args(words)
    return evaluation.Evaluation(read_options(evaluate.EvaluationOptions, args, generate=extra))


@pytest.mark.parametrize(
    "text, test_set, message",
    [
        ("ein Satz\n", "wmt14/full", "wmt14/full"),
        (None, "wmt14/full", "test.de"),
        ("wohl @-@ bekannt\n", "none", "test.de is tokenized with hyphens split already"),
    ],
)
def test_a_wrong_reference_is_found_before_translating(
    text, test_set, message, data, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(evaluation, "run_logged", lambda *_, **__: pytest.fail("it translates"))
    if text is not None:
        (data / "plain" / "test.de").write_text(text, encoding="utf-8")
    words = [str(data), "--path", str(data / "checkpoint.pt"), "--results", str(tmp_path / "out")]
    assert evaluate.main([*words, "--test-set", test_set]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("sharded", [False, True])
def test_shards_and_the_lengths_that_the_model_reads(sharded, data, tmp_path, monkeypatch):
    """Test text is in the first shard, and the maximum positions are those of the model."""
    folder = data / "shard0" if sharded else data
    folder.mkdir(exist_ok=True)
    for name in ("train.en-de.en.idx", "dict.en.txt", "dict.de.txt"):
        (data / name).rename(folder / name)
    state = {"cfg": {"model": {"max_source_positions": 77, "max_target_positions": 88}}}
    monkeypatch.setattr(evaluation.checkpoint_utils, "load_checkpoint_to_cpu", lambda path: state)
    words = [str(data), "--path", str(data / "checkpoint.pt"), "--results", str(tmp_path / "out")]
    found = evaluate_with(words, ["--cpu"])
    options = found._generate_options(found.folder, "test", 1.0)
    assert options[0] == str(folder) and options[-1] == "--cpu"
    assert options[options.index("--max-source-positions") + 1] == "77"
    assert options[options.index("--max-target-positions") + 1] == "88"


@pytest.mark.parametrize("given, expected", [(4, "9"), (30, "30")])
def test_a_batch_holds_the_longest_example(given, expected, data, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "_position_options", lambda path: {})
    monkeypatch.setattr(evaluation, "read_sizes", lambda *names: np.array([3, 9 if names[-1] == "de" else 5]))
    words = [str(data), "--path", str(data / "checkpoint.pt"), "--results", str(tmp_path / "out")]
    found = evaluate_with([*words, "--max-tokens", str(given)])
    options = found._generate_options(found.folder, "test", 1.0)
    assert options[options.index("--max-tokens") + 1] == expected


@pytest.mark.parametrize(
    "extra, expected",
    [
        ("", ["1.5", "20"]),
        ("--max-len-b 50", [None, "50"]),
        ("--max-len-a=1", [None, None]),
        ("--min-len 30", [None, None]),
    ],
)
def test_a_translation_is_bounded_by_its_source(extra, expected, data, tmp_path, monkeypatch):
    state = {"cfg": {"model": {}}}
    monkeypatch.setattr(evaluation.checkpoint_utils, "load_checkpoint_to_cpu", lambda path: state)
    words = [str(data), "--path", str(tmp_path / f"{len(extra)}.pt"), "--results", str(tmp_path / "out")]
    (tmp_path / f"{len(extra)}.pt").touch()
    found = evaluate_with(words, extra.split())
    options = found._generate_options(found.folder, "test", 1.0)
    values = [options[options.index(n) + 1] if n in options else None for n in ("--max-len-a", "--max-len-b")]
    assert values == expected


def test_a_shortlist_is_passed_on(data, tmp_path, monkeypatch):
    state = {"cfg": {"model": {}}}
    monkeypatch.setattr(evaluation.checkpoint_utils, "load_checkpoint_to_cpu", lambda path: state)
    words = [str(data), "--path", str(data / "checkpoint.pt"), "--results", str(tmp_path / "out")]
    words += ["--shortlist", str(tmp_path / "shortlist")]
    with pytest.raises(InputError, match="--shortlist"):
        evaluate_with(words)
    (tmp_path / "shortlist").touch()
    found = evaluate_with(words)
    options = found._generate_options(found.folder, "test", 1.0)
    assert options[options.index("--shortlist") + 1] == str(tmp_path / "shortlist")


@pytest.fixture
def translated(data, tmp_path, monkeypatch):
    """Function that evaluates data with two sentences, and calls ``meanwhile(path)`` during translation.

    The translation is the reference. The result is the exit status.
    """
    text = {"en": ["a dog sleeps", "a cat sleeps"], "de": ["ein Hund schläft", "eine Katze schläft"]}
    for split in ("valid", "test", "test1"):
        for language, lines in text.items():
            path = data / "plain" / f"{split}.{language}"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def evaluated(*words, meanwhile=lambda path: None):
        def translate(command, log, shown, output, *_):
            lines = (f"{kind}-{n}\t{x}{line}" for n, line in enumerate(text["de"]) for kind, x in KINDS)
            output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            meanwhile(data / "checkpoint.pt")

        monkeypatch.setattr(evaluation, "run_logged", translate)
        monkeypatch.setattr(evaluation, "_position_options", lambda path: {})
        monkeypatch.setattr(evaluation, "read_sizes", lambda *_: np.array([3, 3]))
        words = ["--path", str(data / "checkpoint.pt"), "--results", str(tmp_path / "out"), *words]
        return evaluate.main([str(data), *words])

    return evaluated


@pytest.mark.parametrize("ema", [False, True])
def test_a_checkpoint_that_changes_meanwhile_is_not_scored(
    ema, translated, data, tmp_path, monkeypatch, capsys
):
    def replace(path):
        path.write_bytes(path.read_bytes() + b"more")

    if ema:  # the checkpoint is replaced while its average is written
        monkeypatch.setattr(evaluation, "write_ema", lambda path, to: (to.touch(), replace(path)))
    assert translated(*["--ema"] * ema, meanwhile=lambda path: ema or replace(path)) == 1
    assert "checkpoint.pt changed during the evaluation" in capsys.readouterr().err
    assert not (tmp_path / "out" / "scores.json").exists()
    monkeypatch.setattr(evaluation, "write_ema", lambda path, to: to.touch())
    assert translated(*["--ema"] * ema) == 0
    checksum = sha256((data / "checkpoint.pt").read_bytes()).hexdigest()
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert {score["checkpoint_sha256"] for score in scores} == {checksum}
    if ema:  # the checkpoint may change once its average is written
        assert translated("--ema", "--beam", "2", meanwhile=replace) == 0


@pytest.mark.parametrize("option", ["--lm-path", "--replace-unk"])
def test_another_content_of_a_file_of_fairseqs_options_is_translated_again(option, translated, tmp_path):
    file, runs = tmp_path / "file", []
    for content, expected in (("a", 1), ("a", 1), ("other", 2)):
        if not file.exists() or file.read_text() != content:
            file.write_text(content)
        assert translated("--", f"{option}={file}", meanwhile=runs.append) == 0
        assert len(runs) == expected


def test_one_of_several_test_texts(translated, tmp_path, capsys):
    assert translated() == 0
    said = capsys.readouterr().out
    assert said.startswith("test: ") and "has more test texts: translate them with --subset test1\n" in said
    first = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert translated("--subset", "test1") == 0
    said = capsys.readouterr().out
    assert said.startswith("test1: ") and "--subset" not in said
    names = {path.name for path in (tmp_path / "out").iterdir()} - set(first)
    assert names == {"hypotheses-test1.de", "scores-test1.json", "generate-test1-lenpen1.txt"}
    for name in ("hypotheses.de", "scores.json", "generate-test-lenpen1.txt"):
        assert (tmp_path / "out" / name).stat().st_mtime_ns == first[name]
    assert translated("--subset", "test2") == 1
    assert "test2.de does not exist" in capsys.readouterr().err


def test_a_checkpoint_is_not_overwritten_by_its_average(data, tmp_path):
    (tmp_path / "ema.pt").touch()
    words = [str(data), "--path", str(tmp_path / "ema.pt"), "--results", str(tmp_path), "--ema"]
    with pytest.raises(InputError, match="--path .*ema.pt is the file that --ema writes"):
        evaluate_with(words)


@pytest.mark.parametrize(
    "languages", [("en", "zh-Hans"), ("pt-BR", "en"), ("tok.en", "de"), ("en", "en-GB"), ("a-b", "b")]
)
def test_languages_with_hyphens_and_dots(languages, data, tmp_path):
    for path in [*data.glob("dict.*"), *data.glob("train.*")]:
        path.unlink()
    for name in (
        f"train.{'-'.join(languages)}.{languages[0]}.idx",
        *(f"dict.{one}.txt" for one in languages),
    ):
        (data / name).touch()
    words = [str(data), "--path", str(data / "checkpoint.pt"), "--results", str(tmp_path / "out")]
    found = evaluate_with(words)
    assert found.languages == languages


@pytest.mark.parametrize(
    "option", ["--score-reference", "--prefix-size", "--num-shards", "--remove-bpe", "--tokenizer", "--bpe"]
)
def test_options_with_which_the_scores_would_not_be_the_models(option, data, tmp_path, capsys):
    words = [str(data), "--path", str(data / "checkpoint.pt"), "--results", str(tmp_path / "out")]
    assert evaluate.main([*words, "--", option]) == 1
    assert option in capsys.readouterr().err


def test_the_tokenizer_follows_the_target_language(data, tmp_path, monkeypatch):
    (data / "dict.de.txt").rename(data / "dict.zh.txt")
    (data / "train.en-de.en.idx").rename(data / "train.en-zh.en.idx")
    words = [str(data), "--path", str(data / "checkpoint.pt"), "--results", str(tmp_path / "out")]
    assert evaluate_with(words).tokenizer == "zh"
    assert evaluate_with([*words, "--tokenize", "char"]).tokenizer == "char"


def test_sacremoses_is_missed_before_translating(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    words = [str(data), "--path", str(data / "checkpoint.pt"), "--results", str(tmp_path / "out")]
    with pytest.raises(InputError, match="scoring translations into de needs sacremoses"):
        evaluate_with(words)
    # BLEU of Chinese needs no Moses tokens.
    (data / "dict.de.txt").rename(data / "dict.zh.txt")
    (data / "train.en-de.en.idx").rename(data / "train.en-zh.en.idx")
    evaluate_with(words)
    model = data / SUBWORD_METHODS["sentencepiece"].model_file
    model.rename(data / SUBWORD_METHODS["moses"].model_file)
    with pytest.raises(InputError, match="scoring translations into zh needs sacremoses"):
        evaluate_with(words)
