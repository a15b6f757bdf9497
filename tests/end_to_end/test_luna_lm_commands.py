"""Train, validate, score and generate with a tiny causal language model through fairseq's commands."""

import re

import pytest
import torch
from commands import lines, plugin, succeed
from copying import ADAM

from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaLanguageModel

MODEL = "--decoder-layers 2 --decoder-embed-dim 32 --decoder-ffn-embed-dim 48 --decoder-attention-heads 4"
TRAIN = f"--task language_modeling -a luna_lm {MODEL} {ADAM} --projection-length 8 --tokens-per-sample 64"
TRAIN += " --batch-size 8 --max-update 30 --no-epoch-checkpoints"


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    log = succeed("train", *plugin(text), TRAIN, "--save-dir", folder)
    (folder / "log").write_text(log, encoding="utf-8")
    return folder


def test_training_learns(trained):
    found = [
        float(loss)
        for loss in re.findall(r" loss=([\d.]+), ppl", (trained / "log").read_text(encoding="utf-8"))
    ]
    assert len(found) == 30 and found[-1] < 0.9 * found[0]
    names = torch.load(str(trained / "checkpoint_last.pt"), weights_only=False)["model"]
    assert names["decoder.layers.1.packed_embedding.weight"].shape == (8, 32)
    assert not any("encoder_attn" in name for name in names)


def test_eval_lm_agrees_with_validation(trained, text):
    options = "--gen-subset valid --batch-size 8 --sample-break-mode none --tokens-per-sample 64"
    output = succeed("eval_lm", *plugin(text), "--path", trained / "checkpoint_last.pt", options)
    scored = float(re.search(r"Loss \(base 2\): ([\d.]+)", output).group(1))
    logged = re.findall(
        r"valid on 'valid' subset \| loss ([\d.]+)", (trained / "log").read_text(encoding="utf-8")
    )
    assert scored == pytest.approx(float(logged[-1]), abs=2e-3)


def test_generation_goes_on_from_its_prefix(trained, text):
    words = "--task language_modeling --beam 3 --max-len-b 12 --batch-size 4 --gen-subset test"
    output = succeed(
        "generate", *plugin(text), "--path", trained / "checkpoint_last.pt", words, "--sample-break-mode eos"
    )
    hypotheses = lines(output, "H")
    assert len(hypotheses) == 12 and all(text.split("\t")[1].split() for text in hypotheses.values())
    words = "--task language_modeling --beam 3 --max-len-b 12 --buffer-size 3 --max-tokens 100"
    output = succeed(
        "interactive",
        *plugin(text),
        "--path",
        trained / "checkpoint_last.pt",
        words,
        stdin="w1 w2 w3\nw5\nw7 w10\n",
    )
    found = [lines(output, "H")[n].split("\t")[1].split() for n in range(3)]
    assert [f[: len(p)] for f, p in zip(found, (["w1", "w2", "w3"], ["w5"], ["w7", "w10"]))] == [
        ["w1", "w2", "w3"],
        ["w5"],
        ["w7", "w10"],
    ]


def test_from_python(trained, text):
    hub = LunaLanguageModel.from_pretrained(str(trained), "checkpoint_last.pt", str(text))
    together = hub.sample(["w1 w2", "w5 w6 w7"], beam=2, max_len_b=10)
    assert together == [hub.sample(text, beam=2, max_len_b=10) for text in ("w1 w2", "w5 w6 w7")]
    with pytest.raises(InputError, match="^print_alignment "):
        hub.sample("w1 w2", print_alignment="hard")
    score = hub.score("w1 w2 w3")["positional_scores"]
    assert score.exp().lt(1).all() and score.isfinite().all()


def test_a_peer_is_trained_scored_and_generates(text, tmp_path):
    """Models of ``--arch peer_lm`` work with the same commands as Luna's language model."""
    options = "--decoder-attention softmax --alibi --no-token-positional-embeddings"
    train = TRAIN.replace("luna_lm", "peer_lm").replace("--projection-length 8", options)
    succeed("train", *plugin(text), train, "--max-update 4 --save-dir", tmp_path)
    path = ("--path", tmp_path / "checkpoint_last.pt")
    scored = succeed("eval_lm", *plugin(text), *path, "--batch-size 8 --tokens-per-sample 64")
    assert "Perplexity" in scored
    words = "--task language_modeling --beam 3 --max-len-b 12 --batch-size 4 --gen-subset test"
    output = succeed("generate", *plugin(text), *path, words, "--sample-break-mode eos")
    assert len(lines(output, "H")) == 12
