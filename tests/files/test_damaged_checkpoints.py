"""Damage anywhere in a checkpoint is detected."""

import torch

from luna_fairseq.files.checkpoints import archive_is_damaged, damage


def test_every_flipped_bit_is_detected(tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    torch.save({"model": torch.arange(4)}, str(path))
    assert damage(path) is None
    content = path.read_bytes()
    found = set()
    for place in range(len(content)):
        for bit in (1, 8, 128):
            flipped = bytearray(content)
            flipped[place] ^= bit
            path.write_bytes(bytes(flipped))
            found.add("no archive" if archive_is_damaged(path) is None else damage(path))
    # None: some bits, such as those of times, are never read.
    assert found == {None, "is damaged", "no archive"}
