"""luna_anchored with all its parts through fairseq's commands: trained, resumed, generating, refused."""

import pytest
from commands import lines, plugin, refused, succeed
from reversal import AUTHORS_COMMAND, SENTENCES

TRAIN = f"{AUTHORS_COMMAND} --arch luna_anchored --save-dir"


@pytest.fixture(scope="module")
def anchored(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("anchored")
    succeed("train", *plugin(data), TRAIN, folder, "--max-update 6")
    return folder


def test_resumed_and_generating(anchored, data):
    log = succeed("train", *plugin(data), TRAIN, anchored, "--max-update 12")
    assert "Loaded checkpoint" in log and "num_updates: 12 >= max_update: 12" in log
    words = "-s src -t tgt --beam 5 --max-len-b 20 --print-alignment soft"
    output = succeed("generate", *plugin(data), "--path", anchored / "checkpoint_last.pt", words)
    sources, alignments = lines(output, "S"), lines(output, "A")
    assert sorted(lines(output, "H")) == list(range(SENTENCES["test"]))
    for number, row in alignments.items():
        weights = [[float(x) for x in word.split(",")] for word in row.split()]
        assert {len(column) for column in weights} == {len(sources[number].split()) + 1}


def test_a_checkpoint_of_other_options_is_refused(anchored, data):
    words = "--max-update 20 --arch luna --anchored-packed"
    message = refused("train", *plugin(data), TRAIN, anchored, words)
    assert "the checkpoint is of another architecture than the model: " in message
