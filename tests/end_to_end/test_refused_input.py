"""Bad input ends fairseq's commands with one line that names the input, and a nonzero status."""

import pytest
import torch
from commands import plugin, refused
from reversal import AUTHORS_COMMAND

GENERATE = "-s src -t tgt --batch-size 8 --beam 1"
# Before torch 2.6, torch.load reads any class unless it is told not to.
CHECKED = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)
REFUSED_CLASS = "contains .*ExitCode, which torch.load refuses" if CHECKED else "not a fairseq checkpoint"


@pytest.mark.parametrize(
    "words, message",
    [
        # Errors of a model's configuration, a module, the parser and a check.
        ("--decoder-embed-dim 16", "--decoder-embed-dim 16 differs from --encoder-embed-dim 32"),
        ("--decoder-projected-attention-heads 3", "width 32 is not divisible by 3"),
        ("--pack-activation gelu", "argument --pack-activation: invalid choice: 'gelu'"),
        ("--dropout 1.5", "--dropout 1.5: must be at least 0 and below 1"),
        pytest.param(
            "--luna-backend triton",
            "--luna-backend triton cannot be used here: ",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it can be used"),
        ),
    ],
)
def test_options(words, message, data, tmp_path):
    line = refused("train", *plugin(data), AUTHORS_COMMAND, words, "--save-dir", tmp_path)
    assert message in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", ["--encoder-ffn-embed-dim 24", "--untie-luna-kv"])
def test_resuming_with_another_architecture(words, trained, data):
    line = refused("train", *plugin(data), AUTHORS_COMMAND, words, "--max-update 20 --save-dir", trained)
    assert "the checkpoint has another architecture than the model: " in line
    assert ("fc1" if "ffn" in words else "pack_k_proj") in line


def test_generating_from_half_a_file(trained, data, tmp_path):
    half = tmp_path / "checkpoint_best.pt"
    half.write_bytes((trained / "checkpoint_best.pt").read_bytes()[:100_000])
    line = refused("generate", *plugin(data), "--path", half, GENERATE)
    assert line.startswith(f"luna_fairseq: error: {half} cannot be read, because it is truncated")
    assert line.endswith("the folder has no intact checkpoint")


def test_files_that_are_no_checkpoints(tmp_path):
    """The loader refuses text, an empty file, a tensor, a model without options, and unknown classes."""
    from fairseq import checkpoint_utils
    from luna_fairseq.errors import InputError

    contents = {
        "text": (b"w1 w2 w3\n" * 100, "truncated or not a checkpoint"),
        "empty": (b"", "truncated or not a checkpoint"),
        "tensor": (torch.zeros(3), "not a fairseq checkpoint"),
        "model": ({"model": {"weight": torch.zeros(3)}}, "not a fairseq checkpoint"),
        "class": ({"model": pytest.ExitCode.OK}, REFUSED_CLASS),
    }
    for name, (content, message) in contents.items():
        path = tmp_path / f"{name}.pt"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            torch.save(content, str(path))
        with pytest.raises(InputError, match=message) as error:
            checkpoint_utils.load_checkpoint_to_cpu(str(path))
        assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "missing.pt"))
