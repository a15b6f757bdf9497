"""Load the checkpoints of training runs and compare them."""

import pickletools
import zipfile

import torch


def load(path):
    return torch.load(str(path), map_location="cpu", weights_only=False)


def updates(path):
    return load(path)["optimizer_history"][-1]["num_updates"]


def assert_equal(left, right, where=""):
    """Assert that two nested values are equal bit for bit.

    Dictionaries on the right may have additional keys, because torch adds defaults to the optimizer options
    that it loads.
    """
    assert type(left) is type(right), where
    if isinstance(left, dict):
        assert set(left) <= set(right), where
        for key in left:
            assert_equal(left[key], right[key], f"{where}/{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), where
        for number, (one, other) in enumerate(zip(left, right)):
            assert_equal(one, other, f"{where}/{number}")
    elif isinstance(left, torch.Tensor):
        assert torch.equal(left, right), where
    else:
        assert left == right, where


def assert_same_training(left, right):
    """Assert that two checkpoints have equal weights, optimizer, schedule, data position and best loss."""
    assert_equal(left["model"], right["model"], "model")
    assert_equal(left["last_optimizer_state"], right["last_optimizer_state"], "optimizer")
    assert_equal(left["optimizer_history"][-1], right["optimizer_history"][-1], "schedule")
    for part in ("train_iterator", "best"):
        assert_equal(left["extra_state"].get(part), right["extra_state"].get(part), part)


def classes_in(path):
    """Return the names of all classes and functions that unpickling a checkpoint would import."""
    with zipfile.ZipFile(str(path)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        found, texts = set(), []
        for opcode, argument, _ in pickletools.genops(archive.read(name)):
            if opcode.name == "GLOBAL":
                found.add(argument.replace(" ", "."))
            elif opcode.name == "STACK_GLOBAL":
                found.add(".".join(texts[-2:]))
            elif isinstance(argument, str):
                texts.append(argument)
    assert "torch._utils._rebuild_tensor_v2" in found
    return found
