"""Whether a checkpoint is as it was written is told of any damage."""

import torch

from luna_fairseq.files.checkpoints import archive_is_damaged, damage


def test_a_flipped_bit_anywhere(tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    torch.save({"model": torch.arange(4)}, str(path))
    assert damage(path) is None
    content = path.read_bytes()
    said = set()
    for place in range(len(content)):
        for bit in (1, 8, 128):
            flipped = bytearray(content)
            flipped[place] ^= bit
            path.write_bytes(bytes(flipped))
            said.add("no archive" if archive_is_damaged(path) is None else damage(path))
    assert said == {None, "is damaged", "no archive"}  # None: times, and other marks that nothing reads
