"""The analysis commands: ablation models train and translate, and the coverage of P is printed."""

import logging
import re
import warnings

import pytest
from commands import lines, plugin, succeed
from reversal import AUTHORS_COMMAND, SENTENCES

from luna_fairseq.translation import pack_coverage


@pytest.fixture
def coverage(data, capsys):
    """Function that runs pack_coverage on a checkpoint.

    It returns the lines on stdout or, after a failure, the line on stderr.
    """

    def coverage(checkpoint, *words, data=data):
        with warnings.catch_warnings():
            status = pack_coverage.main([str(data), "--path", str(checkpoint), *words])
        captured = capsys.readouterr()
        if status == 0:
            assert captured.err == ""
            return captured.out.splitlines()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        assert line.startswith("python -m luna_fairseq.translation.pack_coverage: error: ")
        return line

    yield coverage
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arch, attention",
    [
        ("luna_softmax_causal", "softmax): MultiheadAttention"),
        ("luna_softmax_cross", "SoftmaxCrossAttention"),
    ],
)
def test_ablations_train_and_translate(coverage, arch, attention, data, tmp_path):
    log = succeed(
        "train",
        *plugin(data),
        AUTHORS_COMMAND,
        f"-a {arch} --decoder-layers 2 --max-update 4",
        "--save-dir",
        tmp_path,
    )
    assert attention in log and "valid on 'valid' subset" in log
    checkpoint = tmp_path / "checkpoint_last.pt"
    output = succeed("generate", *plugin(data), "--path", checkpoint, "-s src -t tgt --beam 3 --max-len-b 8")
    assert sorted(lines(output, "H")) == list(range(SENTENCES["test"]))
    found = coverage(checkpoint)
    if arch == "luna_softmax_cross":
        assert "does not read its source through P" in found
    else:
        assert len(found) == 4


def test_pack_coverage(coverage, trained, corpus):
    checkpoint = trained / "checkpoint_last.pt"
    found = coverage(checkpoint, "--valid-subset", "test")
    assert found == coverage(checkpoint, "--valid-subset", "test", "--batch-size", "1")
    first, _, layer = found
    words = (corpus / "test.src").read_text(encoding="utf-8").split()
    sentences = SENTENCES["test"]
    assert first == f"test: {sentences} sentences, {len(words) + sentences} source positions with EOS"
    assert re.fullmatch(r" +1 +[01]\.\d\d +[01]\.\d\d", layer)


def test_pack_coverage_refuses_bad_input_in_one_line(coverage, trained, tmp_path):
    checkpoint = trained / "checkpoint_last.pt"
    assert "does not exist" in coverage(tmp_path / "none.pt")
    assert "No such file" in coverage(checkpoint, data=tmp_path)
    assert "Dataset not found: none" in coverage(checkpoint, "--valid-subset", "none")
