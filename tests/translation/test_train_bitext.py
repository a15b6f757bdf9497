"""luna-train-bitext, with real processes, on a few dozen pairs and a tiny model."""

import demo_corpus
import pytest

from luna_fairseq.translation import train_bitext

TINY = (
    "--cpu --encoder-layers 1 --decoder-layers 1 --encoder-attention-heads 2 --decoder-attention-heads 2"
    " --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 24 --decoder-ffn-embed-dim 24"
    " --projection-length 4 --warmup-updates 2 --milestones 4"
).split()
LANGUAGES = ["-s", "en", "-t", "de"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bitext")
    corpus = folder / "corpus"
    demo_corpus.main(["--destdir", str(corpus), "--train", "45", "--valid", "5", "--test", "13"])
    words = [*LANGUAGES, "--recipe", "demo", "--average", "2", "--destdir", str(folder / "out")]
    for split in ("train", "valid", "test"):
        words += [f"--{split}pref", str(corpus / split)]
    return folder / "out", words


def train(words, vocab_size, epochs):
    return train_bitext.main([*words, "--vocab-size", vocab_size, "--", *TINY, "--max-epoch", epochs])


def test_from_text_to_score_and_on(trained, capfd):
    out, words = trained
    assert train(words, "150", "2") == 0
    said = capfd.readouterr().out
    assert "luna-train: batch: 1 GPU x 1,000 tokens x --update-freq 1" in said and "| valid |" in said
    assert "BLEU = " in said and "signature: " in said and said.count("  reference  ") == 10
    assert len((out / "hypotheses.de").read_text(encoding="utf-8").split("\n")) == 13 + 1
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == [
        "averaged.pt",
        "checkpoint1.pt",
        "checkpoint2.pt",
        "checkpoint_best.pt",
        "checkpoint_last.pt",
        "sentencepiece.bpe.model",
    ]

    # Started again it goes on.
    assert train(words, "150", "3") == 0
    assert capfd.readouterr().out.count("finished before") == 3
    log = (out / "train.log").read_text(encoding="utf-8")
    assert "Loaded checkpoint" in log and log.count("begin training epoch 2") == 1
    assert (out / "checkpoints" / "checkpoint3.pt").exists()
    assert not (out / "checkpoints" / "checkpoint1.pt").exists()

    # Another encoding under old checkpoints is refused.
    assert train(words, "160", "3") == 1
    assert "another --vocab-size: give another --destdir" in capfd.readouterr().err.splitlines()[-1]


def test_a_training_that_fails_names_its_log(trained, tmp_path, capfd):
    words = [*trained[1]]
    words[words.index("--destdir") + 1] = str(tmp_path)
    assert train_bitext.main([*words, "--vocab-size", "150", "--", "--cpu", "--lr", "none"]) == 1
    error = capfd.readouterr().err
    assert "fairseq-train failed" in error and str(tmp_path / "train.log") in error


@pytest.mark.parametrize(
    "words, message",
    [
        (["--recipe", "huge"], "there is no recipe huge; "),
        ([], "a.en does not exist"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path, capsys):
    prefixes = [
        item for name in ("train", "valid", "test") for item in (f"--{name}pref", str(tmp_path / "a"))
    ]
    given = [*LANGUAGES, "--vocab-size", "100", "--destdir", str(tmp_path / "out"), *prefixes, *words]
    assert train_bitext.main(given) == 1
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1 and "== train" not in said.out
