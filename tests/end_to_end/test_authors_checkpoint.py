"""A checkpoint of the authors' code, written by an old fairseq, loads, translates and trains on."""

from argparse import Namespace

import golden
import pytest
import torch
from commands import lines, plugin, refused, succeed
from reversal import AUTHORS_COMMAND

from fairseq import checkpoint_utils
from luna_fairseq.models import LunaModel

WORDS = [f"w{i}" for i in range(46)]
# Options of the task that an old fairseq stores. Some values have types that are no longer used.
TASK = {
    "task": "translation",
    "arch": "luna_base_tied",
    "source_lang": "src",
    "target_lang": "tgt",
    "left_pad_source": "True",
    "left_pad_target": "False",
    "eval_bleu": True,
    "eval_bleu_detok": "space",
    "eval_bleu_remove_bpe": "@@ ",
    "eval_tokenized_bleu": True,
    "raw_text": False,
    "max_sentences": 1024,
    "criterion": "label_smoothed_cross_entropy",
    "label_smoothing": 0.1,
    "optimizer": "apollo",
    "apollo_beta": 0.9,
    "apollo_eps": 0.0001,
    "rebound": "constant",
    "weight_decay": 1e-08,
    "weight_decay_type": "L2",
    "lr": [0.1],
    "clip_norm": 0.1,
    "clip_mode": "each",
    "lr_scheduler": "milestone",
    "milestones": [300000, 450000],
    "lr_decay_rate": 0.1,
    "warmup_updates": 1000,
    "warmup_init_lr": 1e-05,
    "min_lr": -1,
    "ddp_backend": "c10d",
    "find_unused_parameters": True,
    "distributed_world_size": 8,
    "max_tokens": 8192,
    "model_parallel_size": 1,
    "optimizer_overrides": "{}",
    "sentence_avg": False,
    "threshold_loss_scale": None,
    "update_freq": [1],
    "use_bmuf": False,
    "use_old_adam": False,
}


@pytest.fixture(scope="module")
def vectors():
    return golden.load("luna_model_tied_dynproj")


@pytest.fixture(scope="module")
def folder(vectors, tmp_path_factory):
    """Folder with dictionaries, a small corpus, and the checkpoint ``authors.pt``."""
    folder = tmp_path_factory.mktemp("authors")
    text = "".join(f"{word} 1\n" for word in WORDS)
    sentence = " ".join(WORDS) + "\n"
    for side in ("src", "tgt"):
        (folder / f"dict.{side}.txt").write_text(text, encoding="utf-8")
        for split in ("train", "valid"):
            (folder / f"{split}.src-tgt.{side}").write_text(sentence * 8, encoding="utf-8")
    options = {**vectors["args"], **dict.fromkeys(vectors["args_none"]), **TASK, "data": str(folder)}
    state_dict = vectors["decoding"]["state_dict"]
    tied = state_dict["encoder.embed_tokens.weight"]
    state_dict = {name: tied if name.endswith("embed_tokens.weight") else t for name, t in state_dict.items()}
    checkpoint = {
        "args": Namespace(**options),
        "model": state_dict,
        "optimizer_history": [
            {
                "criterion_name": "LabelSmoothedCrossEntropyCriterion",
                "optimizer_name": "FairseqApollo",
                "lr_scheduler_state": {"lr": 0.001},
                "num_updates": 500000,
            }
        ],
        "extra_state": {
            "train_iterator": {"epoch": 5, "iterations_in_epoch": 0, "shuffle": True},
            "val_loss": 1.0,
            "best": 1.0,
        },
        "last_optimizer_state": apollo_state(state_dict),
    }
    # The authors' version of torch wrote files in the old format without a zip archive.
    torch.save(checkpoint, str(folder / "authors.pt"), _use_new_zipfile_serialization=False)
    return folder


def apollo_state(state_dict):
    """Return an optimizer state as the authors' code saves it.

    The parameters are in the order of the authors' model. Only those that had a gradient have a state.
    """
    names = [
        n for n in state_dict if "version" not in n and "positions" not in n and "decoder.embed" not in n
    ]
    state = {}
    for key, name in enumerate(names):
        zeros = torch.zeros_like(state_dict[name])
        state[key] = {"step": 500000, "exp_avg_grad": zeros, "approx_hessian": zeros, "update": zeros}
    group = {"lr": 0.001, "beta": 0.9, "eps": 0.0001, "rebound": "constant", "warmup": 500, "init_lr": 1e-05}
    group.update(base_lr=0.001, weight_decay=1e-08, weight_decay_type="L2", params=list(state))
    return {"state": state, "param_groups": [group]}


def sentences(vectors):
    for tokens in vectors["decoding"]["inputs"]["src_tokens"].tolist():
        yield " ".join(WORDS[token - 4] for token in tokens if token >= 4)


def test_translations_are_the_authors(folder, vectors):
    output = succeed(
        "interactive",
        *plugin(folder),
        "--path",
        folder / "authors.pt",
        "-s src -t tgt --beam 5 --max-len-b 20 --buffer-size 6 --max-tokens 100",
        stdin="\n".join(sentences(vectors)) + "\n",
    )
    found = lines(output, "H")
    for number, hypotheses in enumerate(vectors["decoding"]["beam5"]):
        tokens = hypotheses[0]["tokens"].tolist()[:-1]
        score, text = found[number].split("\t")
        assert text.split() == [WORDS[token - 4] for token in tokens]
        # fairseq prints logarithms to the base 2.
        assert float(score) * 0.6931472 == pytest.approx(float(hypotheses[0]["score"]), abs=2e-5)


def test_from_python(folder, vectors):
    hub = LunaModel.from_pretrained(str(folder), "authors.pt", str(folder))
    expected = [hypotheses[0]["tokens"].tolist()[:-1] for hypotheses in vectors["decoding"]["beam5"]]
    translations = hub.translate(list(sentences(vectors)), beam=5, max_len_a=0, max_len_b=20)
    assert [text.split() for text in translations] == [[WORDS[t - 4] for t in tokens] for tokens in expected]


def test_options_are_kept_and_new_ones_have_the_values_of_then(folder):
    models, cfg = checkpoint_utils.load_model_ensemble([str(folder / "authors.pt")])
    assert isinstance(models[0], LunaModel)
    assert cfg.model.projection_length == 6 and cfg.model.dropout == 0.0
    assert cfg.model.pack_activation == "softplus" and not cfg.model.non_contextual_packed
    assert cfg.optimizer.clip_mode == "each" and list(cfg.lr_scheduler.milestones) == [300000, 450000]


def train(run, folder, *words):
    options = (
        "--encoder-ffn-embed-dim 128 --decoder-ffn-embed-dim 128 "
        "--encoder-embed-dim 64 --decoder-embed-dim 64"
    )
    options += " --decoder-layers 2 --decoder-attention-heads 4 --encoder-projected-attention-heads 4"
    options += " --projection-length 6 --dataset-impl raw --disable-validation"
    return run(
        "train", *plugin(folder), AUTHORS_COMMAND, options, "--restore-file", folder / "authors.pt", *words
    )


def test_training_on_from_the_weights(folder, tmp_path):
    reset = "--reset-optimizer --reset-lr-scheduler --reset-dataloader --reset-meters --max-update 2"
    train(succeed, folder, "--save-dir", tmp_path, reset)
    saved = torch.load(str(tmp_path / "checkpoint_last.pt"), weights_only=False)
    assert "encoder.packed_embedding.weight" in saved["model"]
    assert "encoder.projected_embeddings" not in saved["model"]


def test_their_optimizer_is_refused(folder, tmp_path):
    line = train(refused, folder, "--save-dir", tmp_path, "--max-update 600000")
    assert "--reset-optimizer" in line
