"""Luna learns to reverse sentences, and reverses sentences that it has not seen."""

import pytest
from commands import lines, plugin, succeed
from reversal import preprocess, write_corpus

MODEL = (
    "--arch luna --projection-length 4 --encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 64"
    " --encoder-ffn-embed-dim 128 --encoder-attention-heads 4 --decoder-attention-heads 4 "
    "--share-all-embeddings"
)
TRAINING = (
    "-s src -t tgt --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout 0.0 --max-tokens "
    "1500"
    " --lr-scheduler inverse_sqrt --warmup-updates 100 --clip-norm 1.0 --max-update 700 --seed 1 "
    "--num-workers 0"
    " --no-epoch-checkpoints --log-format simple --disable-validation"
)


@pytest.mark.slow
def test_reversal(tmp_path):
    write_corpus(tmp_path, {"train": 3000, "valid": 50, "test": 100}, seed=2)
    data, checkpoints = preprocess(tmp_path), tmp_path / "checkpoints"
    optimizer = "--optimizer adam --lr 0.003"
    succeed("train", *plugin(data), MODEL, TRAINING, optimizer, "--save-dir", checkpoints)
    words = "-s src -t tgt --max-tokens 2000 --beam 5 --max-len-b 10 --required-batch-size-multiple 1"
    output = succeed("generate", *plugin(data), "--path", checkpoints / "checkpoint_last.pt", words)
    references, hypotheses = lines(output, "T"), lines(output, "H")
    right = sum(hypotheses[n].split("\t")[1] == reference for n, reference in references.items())
    assert len(references) == 100 and right >= 90, right
