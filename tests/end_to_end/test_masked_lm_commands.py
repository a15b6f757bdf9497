"""Pretrain, validate and fine-tune a tiny masked language model, and use it in Python."""

import re

import pytest
import torch
from commands import plugin, succeed
from copying import ADAM, MODEL, PRETRAIN, preprocess, write_labelled
from saved_training import classes_in

from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaMaskedLM

FINE_TUNE = (
    f"--task sentence_prediction --criterion sentence_prediction -a luna_bert {MODEL} {ADAM} --num-classes 2"
    " --init-token 0 --batch-size 8 --reset-optimizer --reset-dataloader --reset-meters "
    "--no-epoch-checkpoints"
)


@pytest.fixture(scope="module")
def labelled(text, tmp_path_factory):
    """Data folder of a classification task, with the dictionary of the pretraining text."""
    folder = tmp_path_factory.mktemp("labelled")
    write_labelled(folder)
    preprocess(folder, folder / "bin" / "input0", ".input0", "--srcdict", text / "dict.txt")
    preprocess(folder, folder / "bin" / "label", ".label")
    return folder / "bin"


@pytest.fixture(scope="module")
def pretrained(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    log = succeed(
        "train", *plugin(text), PRETRAIN, "--max-update 60 --no-epoch-checkpoints", "--save-dir", folder
    )
    (folder / "log").write_text(log, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def fine_tuned(pretrained, labelled, tmp_path_factory):
    """Folder of a run that fine-tunes ``attention_classification_head``, which reads P by attention."""
    folder = tmp_path_factory.mktemp("tuned")
    head = "--classification-head-name attention_classification_head --max-update 20"
    restore = ("--restore-file", pretrained / "checkpoint_last.pt")
    log = succeed("train", *plugin(labelled), FINE_TUNE, head, *restore, "--save-dir", folder)
    (folder / "log").write_text(log, encoding="utf-8")
    return folder


def test_pretraining_learns(pretrained):
    log = (pretrained / "log").read_text(encoding="utf-8")
    found = [float(loss) for loss in re.findall(r"num_updates=\d+.*| loss=([\d.]+), ppl", log) if loss]
    assert len(found) == 60 and sum(found[-5:]) / 5 < 0.88 * found[0]
    checkpoint = torch.load(str(pretrained / "checkpoint_last.pt"), weights_only=False)
    assert checkpoint["cfg"]["model"]["_name"] == "luna_bert"
    # Adam has a state for every parameter that had a gradient.
    names = [name for name in checkpoint["model"] if not name.endswith(("version", "lm_head.weight"))]
    assert len(checkpoint["last_optimizer_state"]["state"]) == len(names)


def test_validation(pretrained, text):
    words = "--task masked_lm --criterion masked_lm --valid-subset valid --batch-size 8"
    output = succeed("validate", *plugin(text), "--path", pretrained / "checkpoint_last.pt", words)
    loss = re.search(r"valid on 'valid' subset \| loss ([\d.]+)", output).group(1)
    assert (
        loss == re.findall(r"valid on 'valid' subset \| loss ([\d.]+)", (pretrained / "log").read_text())[-1]
    )


def test_fine_tuning(fine_tuned, labelled):
    log = (fine_tuned / "log").read_text(encoding="utf-8")
    assert "Overwriting classification_heads.attention_classification_head.attn" in log
    words = "--task sentence_prediction --criterion sentence_prediction --valid-subset valid --batch-size 8"
    words += " --classification-head-name attention_classification_head"
    assert not any("luna" in name for name in classes_in(fine_tuned / "checkpoint_last.pt"))
    output = succeed("validate", *plugin(labelled), "--path", fine_tuned / "checkpoint_last.pt", words)
    accuracy = re.search(r"accuracy ([\d.]+)", output).group(1)
    assert accuracy == re.findall(r"valid on 'valid' subset.*?accuracy ([\d.]+)", log)[-1]


def test_use_from_python(pretrained, fine_tuned, text, labelled):
    hub = LunaMaskedLM.from_pretrained(str(pretrained), "checkpoint_last.pt", str(text))
    assert not hub.training
    tokens = [hub.encode(sentence) for sentence in ("w1 w2 w3 w4", "w7", "w5 w8 w11")]
    assert [hub.decode(t) for t in tokens] == ["w1 w2 w3 w4", "w7", "w5 w8 w11"]
    assert hub.decode(hub.encode("w1 w2", "w3")) == ["w1 w2", "w3"]
    features, packed, mask = hub.extract_features(tokens, return_packed=True)
    assert (
        features.shape == (3, 6, 32) and packed.shape == (3, 6, 32) and mask.sum(dim=1).tolist() == [0, 3, 1]
    )
    assert len(hub.extract_features(tokens, return_all_hiddens=True)) == 3
    embeddings = hub.sentence_embedding(tokens)
    assert embeddings.shape == (3, 32)
    torch.testing.assert_close(embeddings[1:2], hub.sentence_embedding(tokens[1]), rtol=1e-4, atol=1e-5)
    filled = hub.fill_mask("w1 <mask> w3", topk=4)
    assert [value for _, value, _ in filled] == sorted((value for _, value, _ in filled), reverse=True)
    assert len(filled) == 4 and all(t == f"w1{token} w3" and token[:2] == " w" for t, _, token in filled)
    assert hub.dictionary.string(hub.encode("w1 <mask> w3 <mask>")) == "w1 <mask> w3 <mask>"
    with pytest.raises(InputError, match="one <mask> .*0"):
        hub.fill_mask("w1 w2")
    with pytest.raises(InputError, match="sst2"):
        hub.predict("sst2", tokens)
    with pytest.raises(InputError, match="72 tokens.* 64"):
        hub.extract_features(hub.encode("w1 " * 70))

    hub = LunaMaskedLM.from_pretrained(str(fine_tuned), "checkpoint_last.pt", str(labelled))
    together = hub.predict("attention_classification_head", tokens)
    torch.testing.assert_close(together.exp().sum(dim=1), torch.ones(3))
    for row, sentence in zip(together, tokens):
        alone = hub.predict("attention_classification_head", sentence)
        torch.testing.assert_close(row, alone[0], rtol=1e-4, atol=1e-5)
