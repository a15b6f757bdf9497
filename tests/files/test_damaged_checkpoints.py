"""Damage anywhere in a checkpoint is detected."""

import torch

from luna_fairseq.files.checkpoints import describe_damage, is_damaged_archive


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
