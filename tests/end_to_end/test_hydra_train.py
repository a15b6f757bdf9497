"""fairseq-hydra-train with the recipes in configs/."""

import hydra
import torch
from commands import refused, succeed
from forked import ROOT, USER_DIR

from luna_fairseq.models.luna_masked_lm import ARCHITECTURES as MASKED

SMALL = (
    "+model.encoder_layers=1 +model.decoder_layers=1 +model.encoder_embed_dim=32 "
    "+model.encoder_ffn_embed_dim=48"
    " +model.encoder_attention_heads=4 +model.decoder_attention_heads=4 dataset.max_tokens=100 "
    "dataset.num_workers=0"
    " task.source_lang=src task.target_lang=tgt optimization.max_update=3"
)


def settings(data):
    return f"task.data={data} common.user_dir={USER_DIR}"


def test_the_translation_recipe(data, tmp_path):
    command = (
        "--config-dir",
        ROOT / "configs",
        "--config-name wmt14_en_de +wmt14_en_de=luna_16_softplus_tied",
        settings(data),
        SMALL,
    )
    widths = (
        "+model.decoder_embed_dim=32 +model.decoder_ffn_embed_dim=48 "
        "+model.encoder_projected_attention_heads=2"
    )
    succeed("hydra_train", *command, widths, "+model.decoder_projected_attention_heads=4", folder=tmp_path)
    checkpoint = torch.load(str(tmp_path / "checkpoints" / "checkpoint_last.pt"), weights_only=False)
    cfg = checkpoint["cfg"]
    assert cfg["optimizer"]["_name"] == "apollo" and cfg["optimizer"]["clip_mode"] == "total"
    assert cfg["lr_scheduler"]["milestones"] == [300000, 450000]
    assert cfg["criterion"]["label_smoothing"] == 0.1
    assert {state["step"] for state in checkpoint["last_optimizer_state"]["state"].values()} == {3}


def test_a_model_by_name_in_two_jobs_of_one_process(data, tmp_path):
    """Each job has the preset, and the --patience of the first does not end the second."""
    command = ("-m +model={_name:luna_base_untied} task=translation", settings(data), SMALL)
    ended = "checkpoint.patience=1 dataset.validate_interval_updates=1 optimization.lr=[0.0]"
    succeed("hydra_train", *command, "optimizer=adam common.seed=1,2", ended, folder=tmp_path)
    checkpoints = [torch.load(str(path), weights_only=False) for path in tmp_path.rglob("checkpoint_last.pt")]
    assert [state["cfg"]["model"]["untie_luna_kv"] for state in checkpoints] == [True, True]
    assert all("encoder.layers.0.self_attn.pack_v_proj.weight" in state["model"] for state in checkpoints)
    assert [state["optimizer_history"][-1]["num_updates"] for state in checkpoints] == [2, 2]


def test_a_recipe_that_names_an_architecture(text, tmp_path):
    """The preset of the architecture is applied, and the recipe's own options override it."""
    command = ("--config-dir", ROOT / "configs", "--config-name masked_lm +masked_lm=small")
    changed = (
        f"task.data={text} common.user_dir={USER_DIR} task.tokens_per_sample=32 dataset.batch_size=2"
        " +model.encoder_layers=1 +model.max_positions=64 optimization.max_update=2 "
        "optimization.update_freq=[1]"
    )
    succeed("hydra_train", *command, changed, folder=tmp_path)
    checkpoint = torch.load(str(tmp_path / "checkpoints" / "checkpoint_last.pt"), weights_only=False)
    assert checkpoint["cfg"]["optimizer"]["weight_decay"] == 0.01
    small = MASKED["luna_small_512"]
    found = checkpoint["model"]["encoder.sentence_encoder.packed_embedding.weight"].shape
    assert tuple(found) == (small["projection_length"], small["encoder_embed_dim"])


def test_bad_values_are_named(data, tmp_path):
    command = ("+model={_name:luna_base} task=translation", settings(data), SMALL)
    line = refused("hydra_train", *command, "+model.projection_length=0", folder=tmp_path)
    assert line == "luna_fairseq: error: --projection-length 0: must be at least 1"
    line = refused("hydra_train", *command, "+optimization.max_updat=3", folder=tmp_path)
    by_hydra = hydra.__version__ < "1.1"  # hydra refuses the input itself, in several lines
    assert (
        by_hydra
        or line == "luna_fairseq: error: optimization has no option max_updat. Did you mean max_update?"
    )
