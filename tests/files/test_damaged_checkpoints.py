"""Damage anywhere in a checkpoint is detected, and a full disk is named."""

from pathlib import Path

import pytest
import torch

from fairseq import checkpoint_utils
from luna_fairseq.errors import InputError
from luna_fairseq.files.checkpoints import describe_damage, is_damaged_archive, save_checkpoint


def test_every_flipped_bit_is_detected(tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    torch.save({"model": torch.arange(4)}, str(path))
    assert describe_damage(path) is None
    content = path.read_bytes()
    found = set()
    for place in range(len(content)):
        for bit in (1, 8, 128):
            flipped = bytearray(content)
            flipped[place] ^= bit
            path.write_bytes(bytes(flipped))
            found.add("no archive" if is_damaged_archive(path) is None else describe_damage(path))
    # None: some bits, such as those of times, are never read.
    assert found == {None, "is damaged", "no archive"}


def test_a_truncated_checkpoint_is_named_and_other_errors_stay(tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    torch.save({"model": torch.zeros(20_000)}, str(path))
    content = path.read_bytes()
    for length in (30, len(content) // 2, len(content) - 1):  # torch raises different types of errors
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match=f"{path} cannot be read, because it is truncated"):
            checkpoint_utils.load_checkpoint_to_cpu(str(path))
    with pytest.raises(FileNotFoundError):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "missing.pt"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="writes to a device that is always full")
def test_a_full_disk_is_named(tmp_path):
    path = tmp_path / "averaged.pt"
    path.with_name("averaged.pt.tmp").symlink_to("/dev/full")
    with pytest.raises(InputError, match=f"{path}: No space left on device"):
        save_checkpoint({"model": torch.zeros(100_000)}, path)
    assert list(tmp_path.iterdir()) == []
