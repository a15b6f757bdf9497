"""Recipes: equal settings in both commands, no repeated defaults, the paper's parameter counts, mistakes."""

import logging
import re
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import pytest
from old_torch import without_memory
from omegaconf import OmegaConf

from fairseq import options
from fairseq.dataclass import initialize
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.transformer import TransformerConfig
from luna_fairseq.commands import count_parameters, recipes, show_recipes
from luna_fairseq.commands.recipe_options import load_settings
from luna_fairseq.commands.recipes import list_recipes, read_recipe, recipe_folder
from luna_fairseq.engine.entry_points import _check_and_apply_preset
from luna_fairseq.errors import InputError

WMT = [name for name in list_recipes() if name.startswith("wmt14_en_de/")]
every_recipe = pytest.mark.parametrize("name", list_recipes())
wmt_recipes = pytest.mark.parametrize("name", WMT)
GROUPS = ["common", "dataset", "optimization", "checkpoint", "distributed_training", *recipes.NAMED]
GROUPS.remove("model")  # compared by itself
# 512 a dictionary entry, and the rest; Luna without the 1,024 of a norm of P that nothing reads.
REST = {
    "transformer_base_adam": 44138496,
    "transformer_base_apollo": 44138496,
    # A learned sigma for every dimension of 18 attentions.
    "rfa_256_adam": 44138496 + 18 * 512,
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
    # The strengths of anchors and decay, ratios and gates; what softmax attention to the source has more.
    "luna_16_anchored": 48885760 + 336 + 6 * 2 * 513 * 512,
    "luna_16_anchored_softmax_cross": 48885760 + 1050904,
}
ANCHORED = ("luna_16_anchored", "luna_16_anchored_softmax_cross")
# Said by fairseq too; a recipe says whose they are.
NOT_COMPARED = ("_name", "data", "user_dir")
TABLE_4 = {
    "transformer": "64.9M",
    "luna_16_tied": "69.6M",
    "luna_32_tied": "69.7M",
    "luna_16_untied": "77.5M",
}


@pytest.fixture(autouse=True)
def quiet():
    yield
    logging.disable(logging.NOTSET)


hydra_init = lru_cache(maxsize=None)(initialize.hydra_init)


def parse(words):
    args = options.parse_args_and_arch(options.get_training_parser(), ["data", *words])
    return convert_namespace_to_omegaconf(args)


def from_hydra(name):
    from hydra.core.global_hydra import GlobalHydra
    from hydra.experimental import compose, initialize_config_dir

    GlobalHydra.instance().clear()
    family, row = name.split("/")
    hydra_init(family)
    with initialize_config_dir(config_dir=str(recipe_folder())):
        cfg = compose(config_name=family, overrides=[f"+{family}={row}", "task.data=data"])
    _check_and_apply_preset(initialize.add_defaults, cfg)
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


@every_recipe
def test_both_commands_mean_the_same(name):
    ours, theirs = parse(read_recipe(name).words()), from_hydra(name)
    for group in GROUPS:
        left, right = (OmegaConf.to_container(cfg[group]) for cfg in (ours, theirs))
        if group == "common":
            assert left.pop("user_dir") is None and right.pop("user_dir") == "luna_fairseq"
        if "max_source_positions" in left:  # the shorter of the task's and the model's counts
            for cfg, values in ((ours, left), (theirs, right)):
                of_model = getattr(cfg.model, "max_source_positions", None)
                values["max_source_positions"] = min(values["max_source_positions"], of_model or 1024)
        assert left == right, group
    assert model_settings(ours.model) == model_settings(theirs.model)


@lru_cache(maxsize=None)
def defaults_of(*components):
    """Return the default options of the named components."""
    named = [word for pair in zip(recipes.NAMED.values(), components) for word in pair]
    return vars(options.parse_args_and_arch(options.get_training_parser(), ["data", *named]))


@every_recipe
def test_no_setting_is_repeated(name):
    recipe = read_recipe(name)
    defaults = defaults_of(*(recipe.settings[group]["_name"] for group in recipes.NAMED))
    family = load_settings(recipe.base)
    for content, before in ((family, {}), (load_settings(recipe.path), family)):
        for group in set(content) - {"hydra"}:
            for key in set(content[group]) - set(NOT_COMPARED):
                known = before.get(group, {}).get(key, defaults.get(key))
                assert str(content[group][key]) != str(known), f"{group}.{key}"


@every_recipe
def test_a_long_training_deletes_old_checkpoints(name):
    settings = read_recipe(name).settings
    checkpoint = settings.get("checkpoint", {})
    is_short = 0 < settings["optimization"].get("max_epoch", 0) <= 20
    assert is_short or checkpoint.get("no_epoch_checkpoints") or checkpoint.get("keep_last_epochs")


@every_recipe
def test_the_heading_says_the_batch(name):
    recipe = read_recipe(name)
    heading = recipe.heading + recipes.read_heading(recipe.base)
    (batch,) = [line for line in heading if line.startswith("Batch:")]
    found = re.match(r"Batch: (\S+) GPUs? x (\S+) (tokens|sequences) x (\S+) = (\S+) \3", batch)
    gpus, size, frequency, total = (int(found[n].replace(",", "")) for n in (1, 2, 4, 5))
    dataset = recipe.settings["dataset"]
    assert recipe.gpus == gpus and gpus * size * frequency == total
    assert dataset["max_tokens" if found[3] == "tokens" else "batch_size"] == size
    assert recipe.settings["optimization"].get("update_freq", [1]) == [frequency]


@wmt_recipes
def test_the_heading_says_the_aim_and_the_parameters(name):
    """The other options are compared with the papers in tests/recipes."""
    recipe, row = read_recipe(name), name.split("/")[1]
    head = " ".join(recipe.heading)
    assert recipe.settings["checkpoint"]["keep_last_epochs"] == 10  # the paper averages them
    assert ("Not the paper's" if row in ANCHORED else "Aims at 2") in head
    assert ("the paper's figure (Table" in head) is (row not in ANCHORED)
    assert f"{512 * 40544 + REST[row]:,} with a dictionary of 40,544" in head


def test_every_row_has_a_recipe():
    assert {f"wmt14_en_de/{row}" for row in REST} == set(WMT)


@wmt_recipes
def test_parameter_counts(name):
    row = name.split("/")[1]
    with nullcontext() if row.startswith("rfa") else without_memory():  # rfa draws its features
        counts = count_parameters.count_parameters(read_recipe(name), 40544)
    total = sum(counts.values())
    assert total == 512 * 40544 + REST[row]
    assert counts["embeddings"] == 512 * 40544
    parts = row.split("_")
    in_table = "_".join([*parts[:2], *parts[3:4]]) if parts[0] == "luna" else "transformer"
    if in_table in TABLE_4 and row not in ANCHORED:
        assert f"{total / 1e6:.1f}M" == TABLE_4[in_table]


def test_the_list(capsys):
    assert show_recipes.main([]) == 0
    listed = capsys.readouterr().out.splitlines()
    names = list_recipes()
    assert [line.split()[0] for line in listed] == names and len(listed) >= 23
    assert "lra/listops " in listed[names.index("lra/listops")] and "ListOps, of 500" in "".join(listed)


@pytest.mark.parametrize("is_checkout", [True, False])
def test_a_copy_in_the_package_of_a_checkout_is_not_read(is_checkout, tmp_path, monkeypatch):
    """pip install . in the environment of a checkout writes a copy of configs/ into its package."""
    for folder in (tmp_path / "luna_fairseq" / "configs", tmp_path / "configs"):
        folder.mkdir(parents=True)
    if is_checkout:
        (tmp_path / "setup.py").touch()
    monkeypatch.setattr("luna_fairseq.__file__", str(tmp_path / "luna_fairseq" / "__init__.py"))
    expected = tmp_path / "configs" if is_checkout else tmp_path / "luna_fairseq" / "configs"
    assert recipe_folder() == expected.resolve()


def test_showing_a_recipe_prints_its_commands(capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert show_recipes.main(["masked_lm/small"]) == 0
    out = capsys.readouterr().out
    assert "# Some megabytes of text" in out and "tokens_per_sample: 128" in out
    assert "# batch: 1 GPU x 16 sequences x --update-freq 2 = 32 sequences\n" in out
    assert "fairseq-train DATA \\\n    --user-dir " in out and "--adam-betas '(0.9, 0.98)' \\\n" in out
    assert "--config-name masked_lm \\\n    +masked_lm=small \\\n" in out
    assert show_recipes.main(["listops", "--update-freq", "3"]) == 0
    assert capsys.readouterr().out.strip().endswith("--update-freq 3")
    assert show_recipes.main(["wmt14_en_de/luna_16_softplus_tied", "--lr-scheduler", "fixed"]) == 0
    assert "--milestones" not in capsys.readouterr().out.split("fairseq-train DATA")[1]


MISTAKES = {
    "model: {encoder_layer: 3}": "line 2: option encoder_layer of luna is unknown. Did you mean encoder_l",
    "dataset:\n  max_tokens: 5\n  max_token: 4": "line 4: option max_token of dataset is unknown. Did you",
    "optimizer: {_name: apolo}": "line 2: optimizer apolo is unknown. Did you mean apollo?",
    "model: {_name: luna_bass}": "line 2: model luna_bass is unknown. Did you mean luna_base?",
    "optimisation: {lr: [1]}": "line 2: group optimisation is unknown. Did you mean optimization?",
    "model: [1]": "is not a recipe. Expected groups",
    "model: {": "cannot be read: while parsing",
}


@pytest.mark.parametrize("text, message", MISTAKES.items())
def test_a_mistake_in_a_file_is_one_line(text, message, tmp_path, capsys):
    (tmp_path / "bitext").mkdir()
    (tmp_path / "bitext.yaml").write_text((recipe_folder() / "bitext.yaml").read_text())
    mine = tmp_path / "bitext" / "mine.yaml"
    mine.write_text("# Mine.\ndataset: {max_tokens: 100}\n")
    assert read_recipe(str(mine)).settings["optimizer"]["_name"] == "apollo"
    mine.write_text(f"# Mine.\n{text}\n")
    assert show_recipes.main([str(mine)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("luna-recipes: error: ") and message in error and error.count("\n") == 1
    assert str(mine) in error


OWN = """
task: {_name: %s}
model: {_name: %s}
criterion: {_name: cross_entropy}
optimizer: {_name: adam}
lr_scheduler: {_name: fixed}
optimization: {lr: [0.001, 0.0005], update_freq: [1, 4]}
"""


@pytest.mark.parametrize(
    "task, model, values",
    [
        ("translation, left_pad_source: false", "luna", {"left_pad_source": False}),
        ("translation, left_pad_source: true", "luna, causal_decay: true", {"left_pad_source": True}),
        ("translation", "luna, causal_decay: true", {"causal_decay": True}),
        ("translation", "luna_anchored, causal_decay: true", {"causal_decay": True}),
        (
            "lra-image, pixel_normalization: [0.5, 0.25]",
            "luna_lra_cifar10",
            {"pixel_normalization": [0.5, 0.25]},
        ),
    ],
)
def test_fairseq_reads_the_values_of_a_recipe(task, model, values, tmp_path):
    (tmp_path / "x.yaml").write_text(OWN % (task, model))
    words = read_recipe(str(tmp_path / "x.yaml")).words()
    args = vars(options.parse_args_and_arch(options.get_training_parser(), ["data", *words]))
    values = {**values, "lr": [0.001, 0.0005], "update_freq": [1, 4]}
    assert {name: args[name] for name in values} == values


def test_a_value_without_an_option_is_refused(tmp_path):
    (tmp_path / "x.yaml").write_text(OWN % ("translation", "luna_anchored, causal_decay: false"))
    with pytest.raises(InputError, match="x.yaml: model.causal_decay cannot be False with luna_anchored,"):
        read_recipe(str(tmp_path / "x.yaml")).words()


@pytest.mark.parametrize(
    "name, message",
    [
        ("luna_16_elu_tide", "there is no recipe luna_16_elu_tide. Did you mean wmt14_en_de/luna_16_elu"),
        ("lra/listop", "Did you mean lra/listops"),
        ("small", "recipe small could be any of bitext/small, masked_lm/small"),
        ("xyz", "there is no recipe xyz. luna-recipes lists all recipes"),
        ("nowhere.yaml", "there is no recipe nowhere.yaml: the file does not exist"),
    ],
)
def test_an_unknown_recipe_is_reported_in_one_line(name, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read_recipe(name)


def test_a_name_alone_is_looked_up_in_its_family():
    assert read_recipe("small", "bitext").name == "bitext/small"


def test_a_file_below_the_root(monkeypatch):
    monkeypatch.setattr(recipes, "find_recipe", lambda *_: Path("/nowhere.yaml"))
    with pytest.raises(InputError, match="/nowhere.yaml cannot be read"):
        recipes.read_recipe("/nowhere.yaml")


def test_a_file_without_a_family_needs_all_components(tmp_path):
    (tmp_path / "x.yaml").write_text("model: {_name: luna}\n")
    with pytest.raises(InputError, match="task .*_name"):
        read_recipe(str(tmp_path / "x.yaml"))


def test_an_option_before_the_name_is_refused(capsys):
    assert show_recipes.main(["--quiet"]) == 1
    assert capsys.readouterr().err.startswith(
        "luna-recipes: error: --quiet is unknown here. Usage: luna-recipes"
    )


def test_a_wrong_value_is_reported_without_the_usage_of_another_parser(capsys):
    with pytest.raises(SystemExit):
        show_recipes.main(["bitext/demo", "--max-tokens", "x"])
    assert capsys.readouterr().err.endswith("error: argument --max-tokens: invalid number value: 'x'\n")


def test_a_dictionary_without_room_for_special_symbols(capsys):
    assert count_parameters.main(["luna_16_elu_tied", "--dictionary-size", "3"]) == 1
    assert "at least 4, the number of special symbols" in capsys.readouterr().err
    assert count_parameters.main(["listops"]) == 1
    assert "is lra-text. Use a translation recipe" in capsys.readouterr().err
