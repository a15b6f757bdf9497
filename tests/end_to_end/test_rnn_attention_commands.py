"""Recurrent models with attention: training, translation with alignments, and attention maps."""

import re

import pytest
from commands import lines, plugin, succeed

TRAIN = (
    "-s src -t tgt --arch rnn_attention --encoder-embed-dim 24 --encoder-hidden-size 16 "
    "--decoder-hidden-size 32"
    " --share-all-embeddings --criterion cross_entropy --optimizer adam --lr 0.005 --max-tokens 200"
    " --log-format simple --required-batch-size-multiple 1 --num-workers 0 --no-epoch-checkpoints"
)
GENERATE = "-s src -t tgt --batch-size 8 --beam 3 --required-batch-size-multiple 1 --print-alignment"
VARIANTS = {
    "bahdanau": "--attention bahdanau",
    "local-p": "--attention luong --score general --local predictive --local-window 3 --input-feeding",
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_training_and_translating_with_alignments(variant, data, tmp_path):
    words = (*plugin(data), TRAIN, VARIANTS[variant], "--max-update 8", "--save-dir", tmp_path)
    succeed("train", *words)
    output = succeed("generate", *plugin(data), GENERATE, "--path", tmp_path / "checkpoint_last.pt")
    sources, alignments = lines(output, "S"), lines(output, "A")
    assert alignments.keys() == sources.keys()
    for number, pairs in alignments.items():
        places = [int(place) for place in re.findall(r"(\d+)-\d+", pairs)]
        assert all(place < len(sources[number].split()) for place in places)
    assert any(alignments.values())
    if variant == "bahdanau":
        check_maps(data, tmp_path)


def check_maps(data, folder):
    from luna_fairseq.report.attention import attention_maps
    from luna_fairseq.report.loading import load

    maps = attention_maps(load(folder / "checkpoint_last.pt", data), "w1 w2 w3", target="w3 w2")
    assert list(maps) == ["decoder.0.cross.read"]
    weights = maps["decoder.0.cross.read"]
    assert weights.shape == (1, 3, 4) and (weights.sum(-1) - 1).abs().max() < 1e-6
