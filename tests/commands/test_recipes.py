"""Recipes of configs/wmt14_en_de: one meaning for both commands, the paper's parameter counts, batch and precision."""

import logging
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fairseq import options
from fairseq.dataclass.initialize import add_defaults, hydra_init
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.transformer import TransformerConfig
from luna_fairseq.commands import count_parameters
from luna_fairseq.commands import recipes as recipe_options
from luna_fairseq.errors import InputError

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "wmt14_en_de"
RECIPES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
recipes = pytest.mark.parametrize("name", RECIPES)
GROUPS = "common dataset optimization checkpoint distributed_training task criterion optimizer lr_scheduler".split()
# 512 a dictionary entry, and the rest; Luna without the 1,024 of a norm of P that nothing reads.
REST = {
    "transformer_base_adam": 44138496,
    "transformer_base_apollo": 44138496,
    "luna_16_elu_tied": 48886784 - 1024,
    "luna_16_softplus_tied": 48886784 - 1024,
    "luna_32_elu_tied": 48894976 - 1024,
    "luna_32_softplus_tied": 48894976 - 1024,
    "luna_16_elu_untied": 56766464 - 1024,
    "luna_16_softplus_untied": 56766464 - 1024,
    "luna_32_elu_untied": 56774656 - 1024,
    "luna_32_softplus_untied": 56774656 - 1024,
    # P is never updated: 6 encoder and 5 decoder layers more have no norm of it.
    "luna_16_softplus_tied_non_contextual": 48886784 - 12 * 1024,
}
TABLE_4 = {"transformer": "64.9M", "luna_16_tied": "69.6M", "luna_32_tied": "69.7M", "luna_16_untied": "77.5M"}


@pytest.fixture(autouse=True)
def quiet():
    yield
    logging.disable(logging.NOTSET)


def path(name):
    return CONFIGS / f"{name}.yaml"


def from_command_line(name):
    words = recipe_options.recipe_options(recipe_options.read_recipe(path(name)))
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, ["data", *words]))


def from_hydra(name):
    from hydra.core.global_hydra import GlobalHydra
    from hydra.experimental import compose, initialize_config_dir

    GlobalHydra.instance().clear()
    hydra_init(name)
    with initialize_config_dir(config_dir=str(CONFIGS)):
        cfg = compose(config_name=name, overrides=["task.data=data"])
    add_defaults(cfg)
    return OmegaConf.create(OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))


def model_settings(model):
    if isinstance(model, Namespace):
        name = "transformer"
    else:
        name = model["_name"]
        model = Namespace(**OmegaConf.to_container(model))
    if name != "transformer":
        return {key: value for key, value in vars(model).items() if key != "_name"}
    ARCH_CONFIG_REGISTRY["transformer"](model)  # what fairseq does when it builds the model
    return asdict(TransformerConfig.from_namespace(model))


@recipes
def test_both_commands_mean_the_same(name):
    ours, theirs = from_command_line(name), from_hydra(name)
    for group in GROUPS:
        left, right = (OmegaConf.to_container(cfg[group]) for cfg in (ours, theirs))
        if group == "common":
            assert left.pop("user_dir").endswith("/luna_fairseq") and right.pop("user_dir") == "luna_fairseq"
        assert left == right, group
    assert model_settings(ours.model) == model_settings(theirs.model)


def test_a_difference_would_be_seen(monkeypatch):
    content = recipe_options.read_recipe(path(RECIPES[0]))
    content["model"]["encoder_layers"] = 5
    monkeypatch.setattr(recipe_options, "read_recipe", lambda _: content)
    assert model_settings(from_command_line(RECIPES[0]).model) != model_settings(from_hydra(RECIPES[0]).model)


@recipes
def test_what_the_recipe_says(name):
    cfg = from_command_line(name)
    head = path(name).read_text(encoding="utf-8").split("\nhydra:")[0]
    assert "Aims at 2" in head and "the paper's figure (Table" in head and "8 V100" in head and "65,536" in head
    assert f"{512 * 40544 + REST[name]:,} with a dictionary of 40,544" in head
    assert cfg.optimization.max_update == 500000 and cfg.optimization.clip_norm == 1.0
    assert cfg.dataset.max_tokens == 8192 and cfg.checkpoint.keep_last_epochs == 10
    assert cfg.checkpoint.save_dir == f"checkpoints/{name}" and cfg.criterion.label_smoothing == 0.1
    if name.endswith("adam"):
        assert (cfg.lr_scheduler._name, cfg.lr_scheduler.warmup_updates) == ("inverse_sqrt", 4000)
        assert cfg.optimization.lr == [0.0005]
    else:
        assert list(cfg.lr_scheduler.milestones) == [300000, 450000] and cfg.lr_scheduler.warmup_updates == 1000
        assert cfg.optimization.lr == [0.1] and cfg.optimizer._name == "apollo"
    if name.startswith("luna"):
        _, length, activation, keys, *rest = name.split("_")
        assert cfg.model.projection_length == int(length) and cfg.model.pack_activation == activation
        assert cfg.model.untie_luna_kv is (keys == "untied") and cfg.model.non_contextual_packed is bool(rest)


def test_every_row_has_a_recipe():
    assert set(REST) == set(RECIPES)


@recipes
def test_parameter_counts(name):
    counts = count_parameters.count_parameters(recipe_options.read_recipe(path(name)), 40544)
    total = sum(counts.values())
    assert total == 512 * 40544 + REST[name]
    assert counts["embeddings"] == 512 * 40544
    parts = name.split("_")
    row = "_".join([parts[0], parts[1], parts[3]]) if parts[0] == "luna" else "transformer"
    if row in TABLE_4:
        assert f"{total / 1e6:.1f}M" == TABLE_4[row]


def launch(name, *given, gpus=1, capability=None):
    return recipe_options.launch_options(path(name), given, gpus, capability)


@pytest.mark.parametrize(
    "given, gpus, frequency",
    [
        ((), 8, "1"),
        ((), 1, "8"),
        ((), 2, "4"),
        (("--max-tokens", "4096"), 4, "4"),
        (("--max-tokens=4096",), 16, "1"),
        (("--distributed-world-size", "4"), 1, "2"),
    ],
)
def test_the_batch_is_that_of_eight_gpus(given, gpus, frequency):
    words, said = launch("luna_16_elu_tied", *given, gpus=gpus)
    assert words[len(words) - len(given) - 2 :][:2] == ["--update-freq", frequency]
    assert said[0].endswith(f"x --update-freq {frequency} = 65,536 tokens")


def test_another_batch_only_if_asked_for():
    with pytest.raises(InputError, match="16 GPUs x 8,192 tokens do not divide.* --max-tokens 4096"):
        launch("luna_16_elu_tied", gpus=16)
    with pytest.raises(InputError, match="3 GPUs x 8,192 .* --max-tokens 7281"):
        launch("luna_16_elu_tied", gpus=3)
    assert launch("luna_16_elu_tied", "--max-tokens", "7281", gpus=3)[1][0].endswith("--update-freq 3 = 65,529 tokens")
    words, said = launch("luna_16_elu_tied", "--update-freq", "5", gpus=3)
    assert words[-2:] == ["--update-freq", "5"] and words.count("--update-freq") == 2 and "as given" in said[0]


@pytest.mark.parametrize(
    "name, given, capability, expected",
    [
        ("luna_16_elu_tied", (), (7, 0), ["--fp16", "--fp16-no-flatten-grads"]),
        ("transformer_base_adam", (), (7, 0), ["--fp16"]),
        ("luna_16_elu_tied", (), (9, 0), ["--bf16"]),
        ("luna_16_elu_tied", (), (6, 1), []),
        ("luna_16_elu_tied", (), None, []),
        ("luna_16_elu_tied", ("--fp32",), (9, 0), []),
        ("luna_16_elu_tied", ("--fp16",), (9, 0), ["--fp16", "--fp16-no-flatten-grads"]),
    ],
)
def test_precision(name, given, capability, expected):
    words, _ = launch(name, *given, capability=capability)
    assert sorted(word for word in words if "16" in word and word.startswith("--")) == expected
    assert "--fp32" not in words


def test_bad_recipes_are_one_line(tmp_path, capsys):
    assert recipe_options.main([str(CONFIGS / "luna_64.yaml")]) == 1
    error = capsys.readouterr().err
    assert "luna_64.yaml does not exist; there are: luna_16_elu_tied" in error and error.count("\n") == 1
    (tmp_path / "x.yaml").write_text("model: [1]\n")
    assert recipe_options.main([str(tmp_path / "x.yaml")]) == 1
    assert "is no recipe" in capsys.readouterr().err
    assert count_parameters.main([str(path(RECIPES[0])), "--dictionary-size", "3"]) == 1
    assert "4 special symbols" in capsys.readouterr().err
