"""A recipe on the available GPUs: batch, precision, and the fairseq-train command."""

import shutil
from pathlib import Path

import pytest

from fairseq import options
from luna_fairseq.commands import launch as launching
from luna_fairseq.commands import train
from luna_fairseq.commands.recipes import find_recipe, read_recipe
from luna_fairseq.errors import InputError

LUNA, TRANSFORMER = "luna_16_elu_tied", "transformer_base_adam"


def launch(name, *given, gpus=1, capability=None):
    found = launching.compute_launch(read_recipe(name), given, gpus, capability)
    return found.options, found.notes


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
    words, said = launch(LUNA, *given, gpus=gpus)
    assert words[len(words) - len(given) - 2 :][:2] == ["--update-freq", frequency]
    assert said[0].endswith(f"x --update-freq {frequency} = 65,536 tokens")


@pytest.mark.parametrize(
    "given, left_out",
    [
        ("--lr-scheduler fixed", ["--warmup-init-lr", "--milestones"]),
        ("--lr-scheduler=inverse_sqrt", ["--milestones"]),
        (
            "-a transformer --criterion cross_entropy",
            ["--projection-length", "--pack-activation", "--label-smoothing"],
        ),
        ("--lr 0.1", []),
        ("--lr-scheduler milestone", []),
    ],
)
def test_another_component_than_the_recipes(given, left_out):
    """fairseq-train knows the options of the chosen components alone, and refuses all others."""
    recipe = read_recipe(LUNA, given=given.split())
    assert sorted(recipe.left_out) == sorted(left_out)
    found = launching.compute_launch(recipe, given.split(), 8, None)
    options.parse_args_and_arch(options.get_training_parser(), ["data", *found.options])
    assert any(all(name in note for name in left_out) for note in found.notes[2:]) == bool(left_out)


def test_the_example_of_the_torchrun_script():
    script = Path(__file__).resolve().parents[2] / "scripts" / "train_torchrun.sh"
    example = next(line.split() for line in script.read_text().splitlines() if line.startswith("  scripts/"))
    _, option, gpus, recipe, _, *given = example
    assert option == "--gpus" and launch(recipe, *given, "--distributed-world-size", gpus)


@pytest.mark.parametrize("is_in_recipe", [False, True])
def test_a_cpu_is_used_in_place_of_the_gpus(is_in_recipe):
    """fairseq's default for --distributed-world-size is the number of GPUs, also with --cpu."""
    recipe, given = read_recipe(LUNA), [] if is_in_recipe else ["--cpu"]
    recipe.settings["common"]["cpu"] = is_in_recipe
    found = launching.compute_launch(recipe, given, 8, (7, 0))
    assert found.precision == "fp32" and "--fp16" not in found.options and "--cpu" in found.options
    assert found.options[found.options.index("--distributed-world-size") + 1] == "1"
    assert found.options[found.options.index("--update-freq") + 1] == "8"


def test_a_batch_of_sequences():
    words, said = launch("base_16gb", "--batch-size", "8", gpus=4)
    assert said[0] == "batch: 4 GPUs x 8 sequences x --update-freq 64 = 2,048 sequences"
    assert words.count("--update-freq") == 1
    with pytest.raises(InputError, match="3 GPUs x 16 .*2,048 .*--batch-size 1,"):
        launch("base_16gb", gpus=3)
    with pytest.raises(InputError, match="5 GPUs x 16 .*--batch-size"):
        launch("base_16gb", gpus=5)


def test_another_batch_only_if_asked_for():
    with pytest.raises(InputError, match="16 GPUs x 8,192 .*--max-tokens 4096"):
        launch(LUNA, gpus=16)
    with pytest.raises(InputError, match="3 GPUs x 8,192 .* --max-tokens 7281"):
        launch(LUNA, gpus=3)
    assert launch(LUNA, "--max-tokens", "7281", gpus=3)[1][0].endswith("--update-freq 3 = 65,529 tokens")
    words, said = launch(LUNA, "--update-freq", "5", gpus=3)
    assert (
        words[-2:] == ["--update-freq", "5"]
        and words.count("--update-freq") == 1
        and "your option" in said[0]
    )


def test_a_recipe_of_one_gpu_takes_one():
    words, said = launch("bitext/demo", gpus=8)
    assert words[words.index("--distributed-world-size") + 1] == "1" and said[0].startswith(
        "batch: 1 GPU x 1,000 tokens"
    )
    with pytest.raises(InputError, match="--max-tokens 125"):
        launch("bitext/demo", "--distributed-world-size", "8", gpus=8)


@pytest.mark.parametrize(
    "name, given, capability, expected",
    [
        (LUNA, (), (7, 0), ["--fp16", "--fp16-no-flatten-grads"]),
        (TRANSFORMER, (), (7, 0), ["--fp16"]),
        (LUNA, (), (9, 0), ["--bf16"]),
        (LUNA, (), (6, 1), []),
        (LUNA, (), None, []),
        (LUNA, ("--fp32",), (9, 0), []),
        (LUNA, ("--fp16",), (9, 0), ["--fp16", "--fp16-no-flatten-grads"]),
        (LUNA, ("--memory-efficient-fp16",), (9, 0), ["--memory-efficient-fp16"]),
        (LUNA, ("--memory-efficient-bf16",), (7, 0), ["--memory-efficient-bf16"]),
        (TRANSFORMER, ("--amp",), (9, 0), []),
        (TRANSFORMER, ("--optimizer", "apollo"), (7, 0), ["--fp16", "--fp16-no-flatten-grads"]),
        (LUNA, ("--optimizer=adam",), (7, 0), ["--fp16"]),
    ],
)
def test_precision(name, given, capability, expected):
    words, _ = launch(name, *given, capability=capability)
    assert sorted(word for word in words if "16" in word and word.startswith("--")) == expected
    assert "--fp32" not in words


def test_the_precision_of_a_recipe():
    recipe = read_recipe(TRANSFORMER)
    recipe.settings["common"]["fp16"] = True
    for given, expected in (((), ["--fp16"]), (("--bf16",), ["--bf16"]), (("--fp32",), [])):
        words = launching.compute_launch(recipe, given, 1, (9, 0)).options
        assert [word for word in words if word.endswith("16")] == expected


def test_a_run_records_the_chosen_precision_alone(tmp_path):
    (tmp_path / "train.bin").touch()
    recipe, changed = read_recipe(TRANSFORMER), read_recipe(TRANSFORMER)
    changed.settings["common"]["amp"] = True
    records = [train._run_identity(one, str(tmp_path), ["--bf16"], "bf16") for one in (recipe, changed)]
    assert records[0] == records[1] and records[0]["precision"] == "--bf16"


def test_checkpoints_go_to_a_folder_of_the_row():
    words, _ = launch(LUNA)
    assert words[words.index("--save-dir") + 1] == f"checkpoints/{LUNA}"
    assert launch(LUNA, "--save-dir", "x")[0].count("--save-dir") == 1


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)  # where a folder for checkpoints is made
    (tmp_path / "train.bin").touch()
    shards = f"{tmp_path}:{tmp_path}"
    line = train.build_command(["base_160gb", shards, "--lr", "1"])
    assert line[1:4] == ["-m", "fairseq_cli.train", shards] and line[-2:] == ["--lr", "1"]
    assert "luna-train: batch: 1 GPU x 16 sequences x --update-freq 512" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--train-subset", "mini"], ["--train-subset=mini"]])
def test_another_training_text(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train.build_command([LUNA, str(tmp_path), *words])[-len(words) :] == words


def with_update_freq(value, folder):
    """Write a copy of a recipe with another update_freq, and return its path."""
    recipe, mine = find_recipe(LUNA), folder / "mine"
    mine.mkdir()
    shutil.copy(str(recipe.parent.with_suffix(".yaml")), str(folder / "mine.yaml"))
    (mine / "x.yaml").write_text(f"{recipe.read_text()}\noptimization: {{update_freq: {value}}}\n")
    return str(mine / "x.yaml")


def test_one_update_freq_per_epoch_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"update_freq \[1, 4\] .* Give --update-freq 1,4"):
        launch(with_update_freq("[1, 4]", tmp_path))


@pytest.mark.parametrize("value", ["8", "[8]", "null"])
def test_the_update_freq_of_a_recipe(value, tmp_path):
    words, _ = launch(with_update_freq(value, tmp_path), gpus=4)
    assert words[words.index("--update-freq") + 1] == ("2" if value == "null" else "16")


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_dry_run_prints_the_command(place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.bin").touch()
    words = [LUNA, str(tmp_path), "--lr", "1"]
    assert train.main([*words[:place], "--dry-run", *words[place:]]) == 0
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed.endswith("--lr 1") and "--dry-run" not in printed
    assert [path.name for path in tmp_path.iterdir()] == ["train.bin"]


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "RECIPE is missing"),
        (["--lr", "1"], "RECIPE is missing"),
        ([LUNA], "DATA is missing"),
        ([LUNA, "--cpu"], "DATA is missing"),
        ([LUNA, "/nowhere"], "/nowhere is not a folder"),
        ([LUNA, str(Path(__file__).parent)], "commands holds no training data. Use a folder that"),
        (["luna_16", "/"], "there is no recipe luna_16"),
    ],
)
def test_wrong_use_is_one_line(words, message, capsys):
    assert train.main(words) == 1
    error = capsys.readouterr().err
    assert error.startswith("luna-train: error: ") and message in error and error.count("\n") == 1
