"""Train, resume and generate with ``luna_anchored`` through fairseq's commands."""

from commands import lines, plugin, succeed
from reversal import AUTHORS_COMMAND, SENTENCES

TRAIN = f"{AUTHORS_COMMAND} --arch luna_anchored --save-dir"


def test_resumed_and_generating(data, tmp_path):
    succeed("train", *plugin(data), TRAIN, tmp_path, "--max-update 6")
    log = succeed("train", *plugin(data), TRAIN, tmp_path, "--max-update 12")
    assert "Loaded checkpoint" in log and "num_updates: 12 >= max_update: 12" in log
    words = "-s src -t tgt --beam 5 --max-len-b 20 --print-alignment soft"
    output = succeed("generate", *plugin(data), "--path", tmp_path / "checkpoint_last.pt", words)
    sources, alignments = lines(output, "S"), lines(output, "A")
    assert sorted(lines(output, "H")) == list(range(SENTENCES["test"]))
    for number, row in alignments.items():
        weights = [[float(x) for x in word.split(",")] for word in row.split()]
        assert {len(column) for column in weights} == {len(sources[number].split()) + 1}
