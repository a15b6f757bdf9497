import random
from argparse import Namespace

import numpy
import pytest
import torch

from luna_fairseq.commands import average_checkpoints, averaging
from luna_fairseq.peers.resampling import ResampledNormal

# Values of an option in two checkpoints whose parameters have the same shapes.
OPTIONS = [
    ("luna", "encoder_attention_heads", 2, 4),
    ("luna", "share_all_embeddings", True, False),
    ("luna_anchored", "packed_lookup", 4, 8),
    ("luna_lm", "pack_activation", "softplus", "elu"),
    ("luna_lra_imdb", "sen_rep_type", "cls", "mp"),
    ("luna_lra_imdb", "classifier_activation_fn", "relu", "gelu"),
    ("peer_transformer", "cross_attention", None, "linear"),
    ("peer_transformer", "performer_features", 64, 32, {"attention": "performer"}),
    ("peer_lm", "rfa_dim", 64, 32, {"decoder_attention": "rfa"}),
    ("peer_roberta", "rfa_dim", 64, 32, {"attention": "rfa"}),
    ("peer_lra_imdb", "longformer_global_tokens", 1, 2, {"attention": "longformer"}),
    ("rnn_attention", "score", None, "dot"),
    ("transformer", "no_scale_embedding", False, True),
    ("roberta_base", "pooler_activation_fn", "tanh", "relu"),
    ("an_arch_of_another_plugin", "encoder_normalize_before", False, True),
]


def checkpoint(seed, dtype=torch.float32, width=6, arch="luna", groups=(), **settings):
    """Return a checkpoint as fairseq's trainer saves it, with tied embeddings and an integer buffer."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(50, width, generator=generator).to(dtype)
    model = {
        "encoder.embed_tokens.weight": embedding,
        "encoder.version": torch.tensor([3.0]),
        "decoder.embed_tokens.weight": embedding,
        "decoder.output_projection.weight": embedding,
        "decoder.norm.num_batches_tracked": torch.tensor(10 * seed),
        "decoder.fc.weight": torch.randn(4, width, generator=generator).to(dtype),
    }
    return {
        "args": None,
        "cfg": {
            "model": Namespace(arch=arch, **settings),
            "task": {"_name": "translation", "source_lang": "en", "target_lang": "de"},
            "common": {"seed": 1},
            "checkpoint": {"save_dir": "run"},
            **dict(groups),
        },
        "model": model,
        "optimizer_history": [{"num_updates": 100 * seed, "optimizer_name": "FairseqAdam"}],
        "extra_state": {"best": numpy.float64(seed), "val_loss": 3.0, "ema": {"x": torch.zeros(1000)}},
        "last_optimizer_state": {"moments": torch.zeros(10000)},
    }


def write(folder, *states, pattern="checkpoint{}.pt"):
    paths = [folder / pattern.format(number) for number in range(1, len(states) + 1)]
    for path, state in zip(paths, states):
        torch.save(state, str(path))
    return paths


def run(*arguments):
    return average_checkpoints.main([str(argument) for argument in arguments])


def refused(capsys, *arguments):
    """Run the command, check that it fails, and return the line that it prints."""
    assert run(*arguments) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(errors) == 1 and errors[0].startswith("luna-average-checkpoints: error: ")
    return errors[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_mean_in_stored_type(tmp_path, dtype):
    states = [checkpoint(seed, dtype) for seed in (1, 2, 3)]
    expected = sum(state["model"]["decoder.fc.weight"].double() for state in states) / 3
    paths = write(tmp_path, *states)
    result = averaging.average_checkpoints(paths)["model"]["decoder.fc.weight"]
    assert result.dtype == dtype
    assert torch.equal(result, expected.to(dtype))


def test_half_precision_sum_is_not_taken_in_half(tmp_path):
    states = [checkpoint(seed, torch.float16) for seed in range(1, 5)]
    for state in states:
        state["model"]["decoder.fc.weight"].fill_(40000.0)  # two of these overflow float16
    result = averaging.average_checkpoints(write(tmp_path, *states))["model"]["decoder.fc.weight"]
    assert torch.equal(result, states[0]["model"]["decoder.fc.weight"])  # of equal weights it is exact


def test_other_entries_are_those_of_the_last_checkpoint(tmp_path):
    write(tmp_path, *[checkpoint(seed) for seed in (1, 2, 3)])
    output = tmp_path / "average.pt"
    assert run("--inputs", tmp_path / "checkpoint1.pt", tmp_path / "checkpoint3.pt", "--output", output) == 0
    state = torch.load(str(output))
    assert state["optimizer_history"][-1]["num_updates"] == 300
    assert state["model"]["decoder.norm.num_batches_tracked"] == 30
    assert state["cfg"]["model"].arch == "luna"
    assert state["extra_state"] == {"best": 3.0}
    assert "last_optimizer_state" not in state


def test_random_numbers_that_training_drew_are_those_of_the_last_checkpoint(tmp_path):
    """The mean of two samples is not a sample: its rows would be too short."""
    drawing, models = ResampledNormal((8, 4), interval=10).train(), []
    for number in (1, 2):
        drawing.set_num_updates(10 * number)
        models.append(checkpoint(number))
        saved = drawing.state_dict()
        models[-1]["model"].update({f"features.{name}": x.clone() for name, x in saved.items()})
    averaged = averaging.average_checkpoints(write(tmp_path, *models))["model"]
    loaded = ResampledNormal((8, 4), interval=10)
    loaded.load_state_dict({name: averaged[f"features.{name}"] for name in saved})
    assert torch.equal(loaded.values, drawing.values)


def test_tied_parameters_are_stored_once(tmp_path):
    paths = write(tmp_path, *[checkpoint(seed, width=512) for seed in (1, 2)])
    output = tmp_path / "average.pt"
    assert run("--inputs", *paths, "--output", output) == 0
    model = torch.load(str(output))["model"]
    tied = [value for value in model.values() if value.shape == (50, 512)]
    assert len(tied) == 3 and len({tensor.data_ptr() for tensor in tied}) == 1
    assert output.stat().st_size < paths[0].stat().st_size


def test_parameters_untied_in_one_checkpoint_keep_their_own_means(tmp_path):
    first, second = checkpoint(1), checkpoint(2)
    first["model"]["decoder.output_projection.weight"] = first["model"]["encoder.embed_tokens.weight"] + 2
    model = averaging.average_checkpoints(write(tmp_path, first, second))["model"]
    difference = model["decoder.output_projection.weight"] - model["encoder.embed_tokens.weight"]
    assert torch.allclose(difference, torch.ones(1))


@pytest.mark.parametrize(
    "option, pattern",
    [
        ("--num-epoch-checkpoints", "checkpoint{}-a.pt"),
        ("--num-epoch-checkpoints", "checkpoint{}_a.pt"),
        ("--num-update-checkpoints", "checkpoint_1_{}-a.pt"),
    ],
)
def test_latest_of_a_run_with_a_checkpoint_suffix(tmp_path, capsys, option, pattern):
    write(tmp_path, *[checkpoint(seed) for seed in range(1, 12)], pattern=pattern)
    words = ["--inputs", tmp_path, "--output", tmp_path / "out.pt", option, 2]
    assert run(*words) == 0
    suffix = pattern.split("}")[1][: -len(".pt")]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"all checkpoints in {tmp_path} have the suffix {suffix}"
    assert said[2:4] == [f"  {tmp_path / pattern.format(number)}" for number in (10, 11)]
    (tmp_path / pattern.format(3).replace("a.pt", "b.pt")).write_bytes(b"not to be read")
    assert f"the suffixes {suffix}, {suffix[0]}b. List the files with" in refused(capsys, *words)


@pytest.mark.parametrize(
    "option, pattern, bound, expected",
    [
        ("--num-epoch-checkpoints", "checkpoint{}.pt", None, [11, 12]),
        ("--num-epoch-checkpoints", "checkpoint{}.pt", 10, [9, 10]),
        ("--num-update-checkpoints", "checkpoint_1_{}.pt", None, [11, 12]),
        ("--num-update-checkpoints", "checkpoint_1_{}.pt", 5, [4, 5]),
    ],
)
def test_latest_of_a_folder(tmp_path, capsys, option, pattern, bound, expected):
    write(tmp_path, *[checkpoint(seed) for seed in range(1, 13)], pattern=pattern)
    for name in ("checkpoint_last.pt", "checkpoint_best.pt", "checkpoint99-shard0.pt", "checkpoint98.pt.tmp"):
        (tmp_path / name).write_bytes(b"not to be read")
    bounds = [] if bound is None else ["--checkpoint-upper-bound", bound]
    assert run("--inputs", tmp_path, "--output", tmp_path / "out.pt", option, 2, *bounds) == 0
    files = [f"  {tmp_path / pattern.format(number)}" for number in expected]
    assert capsys.readouterr().out.splitlines() == [
        "averaging 2 checkpoints:",
        *files,
        f"wrote {tmp_path / 'out.pt'}",
    ]


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(arch="transformer"), ": arch is transformer, not "),
        (
            dict(groups={"task": {"_name": "translation", "source_lang": "de", "target_lang": "en"}}),
            "was trained to translate en to de, not de to en",
        ),
        (
            dict(groups={"task": {"_name": "masked_lm"}}),
            "was trained for translation, not for masked language",
        ),
        (dict(width=8), "encoder.embed_tokens.weight is (50, 8)"),
        (dict(dtype=torch.float16), "torch.float16"),
    ],
)
def test_differing_models_are_refused(tmp_path, capsys, change, message):
    paths = write(tmp_path, checkpoint(1), checkpoint(2, **change))
    output = tmp_path / "out.pt"
    assert message in refused(capsys, "--inputs", *paths, "--output", output)
    assert not output.exists()


@pytest.mark.parametrize("arch, option, first, second, more", [(*one, {})[:5] for one in OPTIONS])
def test_options_that_no_shape_shows_are_compared(tmp_path, capsys, arch, option, first, second, more):
    states = [checkpoint(1, arch=arch, **{option: value}, **more) for value in (first, second)]
    line = refused(capsys, "--inputs", *write(tmp_path, *states), "--output", tmp_path / "out.pt")
    assert f": {option} is {second}, not " in line


@pytest.mark.parametrize(
    "arch, changed",
    [
        ("luna", {"dropout": 0.3, "luna_backend": "chunk"}),
        ("luna", {"encoder_projected_attention_heads": 8}),  # as by default
        ("peer_transformer", {"attention_dropout": 0.2, "cross_attention": "softmax"}),
        ("peer_transformer", {"performer_features": 32}),  # without performer
        ("luna_softmax_causal", {"causal_decay": True}),
        ("transformer", {"dropout": 0.3}),
        ("luna_base", {}),  # another name of the same
    ],
)
def test_options_that_may_change_or_have_no_effect_are_ignored(tmp_path, arch, changed):
    states = [
        checkpoint(1, arch="luna" if arch == "luna_base" else arch),
        checkpoint(2, arch=arch, **changed),
    ]
    averaging.average_checkpoints(write(tmp_path, *states))


@pytest.mark.parametrize(
    "runs, groups, message",
    [
        ((None, None), {"common": {"seed": 2}}, "(--seed 2 and 1)"),
        ((None, None), {"checkpoint": {"save_dir": "other"}}, "(--save-dir other and run)"),
        (("a", "b"), {}, "(run b and a)"),
        (("a", "a"), {"checkpoint": {"save_dir": "moved"}}, None),
        ((None, "b"), {}, None),
    ],
)
def test_unrelated_runs_are_averaged_only_when_asked_for(tmp_path, capsys, runs, groups, message):
    states = [checkpoint(1), checkpoint(2, groups=groups)]
    for state, run_name in zip(states, runs):
        if run_name is not None:
            state["extra_state"]["luna_fairseq.training"] = {"task": "translation", "run": run_name}
    words = ["--inputs", *write(tmp_path, *states), "--output", tmp_path / "out.pt"]
    if message is not None:
        assert message in refused(capsys, *words)
        words.append("--force")
    assert run(*words) == 0


@pytest.mark.parametrize("extra_in, message", [(0, "has no parameter bias"), (1, "has a parameter bias")])
def test_differing_parameter_names_are_refused(tmp_path, capsys, extra_in, message):
    states = [checkpoint(1), checkpoint(2)]
    states[extra_in]["model"]["bias"] = torch.zeros(1)
    line = refused(capsys, "--inputs", *write(tmp_path, *states), "--output", tmp_path / "out.pt")
    assert message in line


def test_other_dictionaries_are_refused(tmp_path, capsys):
    states = [checkpoint(1), checkpoint(2)]
    for state, stored in zip(states, ("50 entries, a", "50 entries, b")):
        state["extra_state"]["luna_fairseq.dictionaries"] = {"source": stored}
    line = refused(capsys, "--inputs", *write(tmp_path, *states), "--output", tmp_path / "out.pt")
    assert ": source dictionary is 50 entries, b, not " in line


def test_unreadable_files_are_refused(tmp_path, capsys):
    good, truncated = write(tmp_path, checkpoint(1), checkpoint(2))
    truncated.write_bytes(truncated.read_bytes()[:-500])
    text, empty, foreign, forbidden = (tmp_path / f"{name}.pt" for name in "text empty foreign class".split())
    text.write_text("hello\n")
    empty.write_bytes(b"")
    torch.save({"weights": torch.zeros(1)}, str(foreign))
    torch.save(dict(checkpoint(1), surprise=random.Random(1)), str(forbidden))
    output = tmp_path / "out.pt"
    for bad in (truncated, text, empty):
        assert f"{bad} cannot be read" in refused(capsys, "--inputs", good, bad, "--output", output)
    assert "is not a fairseq checkpoint" in refused(capsys, "--inputs", good, foreign, "--output", output)
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6):
        assert "random.Random" in refused(capsys, "--inputs", good, forbidden, "--output", output)
    assert not output.exists() and not list(tmp_path.glob("*.tmp*"))


def test_contradictory_arguments_are_refused(tmp_path, capsys):
    paths = write(tmp_path, checkpoint(1), checkpoint(2))
    output = tmp_path / "out.pt"
    cases = {
        "expected at least 3 files checkpoint<epoch>.pt": [tmp_path, "--num-epoch-checkpoints", 3],
        "at least 1 files checkpoint_<epoch>_<update>.pt": [tmp_path, "--num-update-checkpoints", 1],
        "need one folder": [*paths, "--num-epoch-checkpoints", 2],
        "is a folder": [tmp_path],
        "does not exist": [tmp_path / "absent.pt"],
        "given twice": [paths[0], paths[0]],
        "--checkpoint-upper-bound needs": [*paths, "--checkpoint-upper-bound", 2],
    }
    for message, arguments in cases.items():
        assert message in refused(capsys, "--inputs", *arguments, "--output", output)
    assert "is a file that the command reads" in refused(capsys, "--inputs", *paths, "--output", paths[1])
    for bad, why in (
        (tmp_path / "no" / "out.pt", f"{tmp_path / 'no'} does not exist"),
        (tmp_path, "is a folder"),
    ):
        said = refused(capsys, "--inputs", *paths, "--output", bad)
        assert why in said and "Use --output with a file in a folder that exists and is writable" in said


def test_failed_write_leaves_the_old_file(tmp_path, capsys, monkeypatch):
    paths = write(tmp_path, checkpoint(1), checkpoint(2))
    output = tmp_path / "out.pt"
    output.write_text("old")

    def full_disk(state, file):
        file.write(b"half")
        raise RuntimeError("No space left on device\ndetails")

    monkeypatch.setattr(averaging.torch, "save", full_disk)
    assert "No space left on device" in refused(capsys, "--inputs", *paths, "--output", output)
    assert output.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint1.pt", "checkpoint2.pt", "out.pt"]
