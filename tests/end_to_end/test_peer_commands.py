"""Peer models with fairseq's commands: training, resuming with resampled random features, and refusals."""

import pytest
import torch
from commands import TINY, lines, plugin, succeed

TRAIN = (
    f"-s src -t tgt --arch peer_transformer {TINY} --decoder-embed-dim 32 --optimizer adam --lr 0.003"
    " --max-tokens 200 --log-format simple --log-interval 4 --required-batch-size-multiple 1"
    " --num-workers 0 --no-epoch-checkpoints"
)
GENERATE = "-s src -t tgt --batch-size 8 --beam 3 --max-len-b 8 --required-batch-size-multiple 1"


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["performer", "rfa", "abc"])
def test_training_resuming_and_translating(decoder, data, tmp_path):
    options = f"--attention sinkhorn --decoder-attention {decoder} --cross-attention {decoder}"
    options += {"performer": " --performer-redraw-interval 3", "rfa": " --rfa-gate", "abc": ""}[decoder]
    command = (*plugin(data), TRAIN, options)
    succeed("train", *command, "--max-update 8", "--save-dir", tmp_path / "whole")
    for updates in (4, 8):
        succeed("train", *command, f"--max-update {updates}", "--save-dir", tmp_path / "resumed")
    whole, resumed = (
        torch.load(str(tmp_path / name / "checkpoint_last.pt"), weights_only=False)["model"]
        for name in ("whole", "resumed")
    )
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
    output = succeed("generate", *plugin(data), GENERATE, "--path", tmp_path / "whole" / "checkpoint_last.pt")
    assert len(lines(output, "H")) > 0
