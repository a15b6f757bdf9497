"""luna-train-bitext on a few dozen sentence pairs with a tiny model, in forked processes."""

import json
import shutil
import sys
from unittest.mock import Mock

import demo_corpus
import pytest

from luna_fairseq.errors import InputError
from luna_fairseq.translation import preparation, scores, train_bitext

TINY = (
    "--cpu --encoder-layers 1 --decoder-layers 1 --encoder-attention-heads 2 --decoder-attention-heads 2"
    " --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 24 --decoder-ffn-embed-dim 24"
    " --projection-length 4 --warmup-updates 2 --milestones 4"
).split()
SOURCE, TARGET = "en-GB", "tok.de"  # codes that file names could be divided at
LANGUAGES = ["-s", SOURCE, "-t", TARGET]


@pytest.fixture(scope="module")
def trained(forked_commands, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bitext")
    corpus = folder / "corpus"
    demo_corpus.main(["--destdir", str(corpus), "--train", "45", "--valid", "5", "--test", "13"])
    for path in sorted(corpus.iterdir()):
        path.rename(path.with_suffix(f".{SOURCE if path.suffix == '.en' else TARGET}"))
    words = [*LANGUAGES, "--recipe", "demo", "--average", "2", "--destdir", str(folder / "out")]
    for split in ("train", "valid"):
        words += [f"--{split}pref", str(corpus / split)]
    words += ["--testpref", f"{corpus / 'test'},{corpus / 'valid'}"]
    return folder / "out", words, corpus


def train(words, vocab_size, epochs, *more):
    return train_bitext.main([*words, "--vocab-size", vocab_size, "--", *TINY, "--max-epoch", epochs, *more])


def test_from_text_to_score_and_on(trained, capfd):
    out, words, corpus = trained
    assert train(words, "150", "2") == 0
    said = capfd.readouterr().out
    assert "luna-train: batch: 1 GPU x 1,000 tokens x --update-freq 1" in said and "| valid |" in said
    assert said.count("\nBLEU = ") == 2 and "signature: " in said and said.count("  reference  ") == 10 + 5
    for name, lines in (("", 13), ("-test1", 5)):
        hypotheses = (out / f"hypotheses{name}.{TARGET}").read_text(encoding="utf-8")
        assert hypotheses.count("\n") == lines and (out / f"scores{name}.json").is_file()
    checkpoints = {f"checkpoint{name}.pt" for name in ("1", "2", "_best", "_last")}
    found = {path.name for path in (out / "checkpoints").iterdir()}
    assert found == {*checkpoints, "averaged.pt", "run.json", "sentencepiece.bpe.model"}

    # A second start continues the training.
    assert train(words, "150", "3") == 0
    assert capfd.readouterr().out.count("finished before") == 2
    log = (out / "train.log").read_text(encoding="utf-8")
    assert "Loaded checkpoint" in log and log.count("begin training epoch 2") == 1
    assert (out / "checkpoints" / "checkpoint3.pt").exists()
    assert not (out / "checkpoints" / "checkpoint1.pt").exists()

    # A third start finds everything done.
    files = [out / "checkpoints" / "averaged.pt", out / "generate.log"]
    before = [path.stat().st_mtime_ns for path in files]
    assert train(words, "150", "3") == 0
    assert "average: finished before" in capfd.readouterr().out
    assert [path.stat().st_mtime_ns for path in files] == before

    # A shorter training would be scored with the checkpoints of the longer one.
    for option, limit in (("--max-epoch", "2"), ("--max-update", "3")):
        assert train(words, "150", "3", option, limit) == 1
        (line,) = capfd.readouterr().err.splitlines()
        assert f"longer than the {limit} " in line and "--destdir" in line

    # Other options and other text are refused in a folder with checkpoints, before anything is written.
    binarised = out / "data" / f"train.{SOURCE}-{TARGET}.{SOURCE}.bin"
    before = binarised.read_bytes()
    swapped = [{SOURCE: TARGET, TARGET: SOURCE}.get(word, word) for word in words]
    for changed, size, named in (
        (words, "160", "--vocab-size 150 before, --vocab-size 160 now"),
        (swapped, "150", "lang"),
        ([*words, "--shards", "2"], "150", "no --shards before, --shards 2 now"),
    ):
        assert train(changed, size, "3") == 1
        (line,) = capfd.readouterr().err.splitlines()
        assert named in line and "--destdir" in line
    assert train([*words, "--quiet"], "150", "3", "--seed", "7") == 1
    line = capfd.readouterr().err.splitlines()[-1]
    assert "--seed" in line and "--destdir" in line and binarised.read_bytes() == before

    text = (corpus / f"train.{SOURCE}").read_bytes()
    (corpus / f"train.{SOURCE}").write_bytes(text.replace(b"\n", b" too\n", 1))
    assert train(words, "150", "3") == 1
    assert "training text" in capfd.readouterr().err
    (corpus / f"train.{SOURCE}").write_bytes(text)


@pytest.mark.parametrize(
    "change, more, message",
    [
        ("test", [], f"test.{SOURCE} has a line of"),
        ("valid", [], f"valid.{SOURCE} has a line of"),
        ("test", ["--max-source-positions", "2000"], f"test.{SOURCE} has a line of"),
        (None, ["--max-epoch", "1"], "--average 2"),
        (None, ["--decoder-output-dim", "8"], "--decoder-output-dim 8"),
        (None, ["--sentence-diagonal"], "--documents"),
        (None, ["--dropout", "2"], "--dropout 2"),
    ],
)
def test_dead_ends_are_found_before_training(change, more, message, trained, tmp_path, monkeypatch, capsys):
    """Otherwise the translation or the averaging would fail after hours of training."""
    monkeypatch.setattr(train_bitext, "train_logged", lambda *_: pytest.fail("it trains"))
    _, words, corpus = trained
    words = [*words]
    words[words.index("--destdir") + 1] = str(tmp_path / "out")
    if change:
        for language in (SOURCE, TARGET):
            lines = (corpus / f"{change}.{language}").read_text(encoding="utf-8") + "hund " * 9000 + "\n"
            (tmp_path / f"{change}.{language}").write_text(lines, encoding="utf-8")
        words[words.index(f"--{change}pref") + 1] = str(tmp_path / change)
    assert train_bitext.main([*words, "--vocab-size", "150", "--", *TINY, *more]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert change or not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change, more, advice",
    [
        ("valid", [], "--max-source-positions {0} --max-target-positions {0} --max-tokens-valid {0}"),
        ("valid", ["--max-tokens", "100", "--update-freq", "1"], "--max-tokens-valid {0}"),
        (
            "train",
            ["--max-source-positions", "2000", "--max-target-positions", "2000"],
            "--max-tokens {0} --update-freq 1",
        ),
    ],
)
def test_the_advice_for_a_long_line_leads_to_training(
    change, more, advice, trained, tmp_path, monkeypatch, capsys
):
    def train_logged(*_):
        raise InputError("it trains")

    monkeypatch.setattr(train_bitext, "train_logged", train_logged)
    _, words, corpus = trained
    words = [*words]
    words[words.index("--destdir") + 1] = str(tmp_path / "out")
    repeated = "hund " * (300 if "--max-tokens" in more else 1500)
    for language in (SOURCE, TARGET):
        lines = (corpus / f"{change}.{language}").read_text(encoding="utf-8") + f"{repeated}\n"
        (tmp_path / f"{change}.{language}").write_text(lines, encoding="utf-8")
    words[words.index(f"--{change}pref") + 1] = str(tmp_path / change)
    assert train(words, "150", "2", *more) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{change}.{SOURCE} has a line of" in line and "a batch holds" in line
    given = line.rstrip(".").partition(" -- ")[2].split()
    assert given == advice.format(given[1]).split()
    assert train(words, "150", "2", *more, *given) == 1
    assert "it trains" in capsys.readouterr().err


def test_data_of_a_trained_model_are_not_replaced(trained, tmp_path, monkeypatch, capsys):
    """Neither by other documents of the same sentences, nor by another version of the preparation."""
    out, ids = tmp_path / "out", tmp_path / "train.doc"

    def train_logged(*_):
        (out / "checkpoints" / "checkpoint_last.pt").touch()
        raise InputError("it trains")

    monkeypatch.setattr(train_bitext, "train_logged", train_logged)
    _, words, corpus = trained
    words = [*words, "--documents", "64"]
    words[words.index("--destdir") + 1] = str(out)
    for language in (SOURCE, TARGET):
        shutil.copy(str(corpus / f"train.{language}"), str(tmp_path))
    words[words.index("--trainpref") + 1] = str(tmp_path / "train")

    def write_documents(size):
        ids.write_text("".join(f"{line // size}\n" for line in range(45)))

    def start():
        assert train(words, "150", "2") == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    write_documents(3)
    assert "it trains" in start()
    data = out / "data" / f"train.{SOURCE}-{TARGET}.{SOURCE}.bin"
    before = data.read_bytes()
    write_documents(15)
    line = start()
    assert "(other documents of the training text)" in line and f"remove {out / 'data'} to" in line
    write_documents(3)
    with monkeypatch.context() as changed:
        changed.setattr(preparation, "VERSION", preparation.VERSION + 1)
        assert f"preparation version {preparation.VERSION} now" in start()
    assert data.read_bytes() == before

    # Records of earlier versions do not say what the data were made from.
    record = out / "data" / "prepare_bitext.json"
    steps = json.loads(record.read_text())
    del steps["encode"]["facts"]["origin"]
    record.write_text(json.dumps(steps))
    assert "it trains" in start() and data.read_bytes() == before


def test_a_tokenized_reference_is_refused_before_anything_is_written(trained, tmp_path, capsys):
    _, words, corpus = trained
    words = [*words, "--vocab-size", "150"]
    words[words.index("--destdir") + 1] = str(tmp_path / "out")
    words[words.index("--testpref") + 1] = f"{corpus / 'valid'},{tmp_path / 'test'}"
    (tmp_path / f"test.{SOURCE}").write_text("well-known\n")
    (tmp_path / f"test.{TARGET}").write_text("wohl @-@ bekannt\n")
    assert train_bitext.main(words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / 'test'}.{TARGET} is tokenized with hyphens split already" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--max-epoch", "--max-update", "--max-source-positions"])
def test_a_value_that_is_no_number(option, trained, tmp_path, capsys):
    words = [*trained[1]]
    words[words.index("--destdir") + 1] = str(tmp_path / "out")
    with pytest.raises(SystemExit) as error:
        train_bitext.main([*words, "--vocab-size", "150", "--", *TINY, option, "abc"])
    said = capsys.readouterr().err
    assert error.value.code == 2 and option in said and "abc" in said and said.count("\n") == 2


def test_a_tokenizer_that_is_not_installed_is_missed_before_training(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train_bitext, "train_logged", lambda *_: pytest.fail("it trains"))
    monkeypatch.setattr(scores, "BLEU", Mock(side_effect=RuntimeError("MeCab")))
    words = [*trained[1], "--tokenize", "ja-mecab", "--vocab-size", "150"]
    assert train_bitext.main(words) == 1
    assert "--tokenize ja-mecab" in capsys.readouterr().err


def test_sacremoses_is_missed_before_training(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train_bitext, "train_logged", lambda *_: pytest.fail("it trains"))
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    words = [*trained[1], "--vocab-size", "150"]
    words[words.index("--destdir") + 1] = str(tmp_path / "out")
    assert train_bitext.main(words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"scoring translations into {TARGET} needs sacremoses" in line and "luna_fairseq[moses]" in line
    assert not (tmp_path / "out").exists()


def test_the_model_of_another_subword_method_is_removed(trained, capfd):
    """A run that was stopped before its first checkpoint may be started again with another --subword."""
    out, words, _ = trained
    other = out / "checkpoints" / "bpe.codes"
    other.write_text("#version: 0.2\n")
    assert train(words, "150", "3") == 0
    assert not other.exists() and (out / "checkpoints" / "sentencepiece.bpe.model").is_file()
    capfd.readouterr()


def test_a_training_that_fails_names_its_log(trained, tmp_path, capfd):
    words = [*trained[1]]
    words[words.index("--destdir") + 1] = str(tmp_path)
    assert train_bitext.main([*words, "--vocab-size", "150", "--", "--cpu", "--restore-file", "none.pt"]) == 1
    error = capfd.readouterr().err
    assert "fairseq-train failed" in error and str(tmp_path / "train.log") in error


def test_a_user_dir_is_passed_on_to_the_evaluation(trained, tmp_path, monkeypatch):
    """Otherwise fairseq-generate would not know a model of the user's own."""
    out, code, calls = tmp_path / "out", tmp_path / "own_code_of_a_user", []
    code.mkdir()
    (code / "__init__.py").touch()
    words = [*trained[1]]
    words[words.index("--destdir") + 1] = str(out)
    checkpoints = out / "checkpoints"
    monkeypatch.setattr(train_bitext, "train_logged", lambda *_: (checkpoints / "checkpoint_last.pt").touch())

    def run(command, words):
        calls.append(words)
        (checkpoints / "averaged.pt").touch()

    monkeypatch.setattr(train_bitext, "_run_command", run)
    assert train(words, "150", "2", "--user-dir", str(code)) == 0
    _, *evaluations = calls
    assert len(evaluations) == 2
    assert all(given[-4:] == ["--", "--cpu", "--user-dir", str(code)] for given in evaluations)


@pytest.mark.parametrize(
    "words, message",
    [(["--recipe", "huge"], "huge"), ([], f"a.{SOURCE} does not exist")],
)
def test_bad_input_is_one_line(words, message, tmp_path, capsys):
    text = f"--trainpref {tmp_path}/a --validpref {tmp_path}/a --testpref {tmp_path}/a".split()
    given = [*LANGUAGES, "--vocab-size", "100", "--destdir", str(tmp_path / "out"), *text, *words]
    assert train_bitext.main(given) == 1
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1 and "== train" not in said.out


@pytest.mark.parametrize("epochs, names", [(0, ["_last"]), (1, ["1"]), (11, ["10", "11"])])
def test_what_is_averaged_where_training_ended_early(epochs, names, tmp_path):
    for name in ["_best", "_last", "_1_500", *range(1, epochs + 1)]:
        (tmp_path / f"checkpoint{name}.pt").touch()
    expected = [tmp_path / f"checkpoint{name}.pt" for name in names]
    assert train_bitext._select_checkpoints(tmp_path, 2) == expected
