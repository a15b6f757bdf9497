"""luna-evaluate looks at the reference before it translates."""

import pytest

from luna_fairseq.text.subword import ROUTES
from luna_fairseq.translation import evaluate


@pytest.fixture
def data(tmp_path):
    """What luna-evaluate wants to see of a prepared folder."""
    folder = tmp_path / "data"
    (folder / "plain").mkdir(parents=True)
    for name in (ROUTES["sentencepiece"].model_file, "train.en-de.en.idx", "checkpoint.pt"):
        (folder / name).touch()
    return folder


@pytest.mark.parametrize("text, message", [("ein Satz\n", "wmt14/full"), (None, "test.de does not exist")])
def test_another_reference_is_found_before_translating(text, message, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evaluate, "run_logged", lambda *_, **__: pytest.fail("it translates"))
    if text is not None:
        (data / "plain" / "test.de").write_text(text, encoding="utf-8")
    words = [str(data), "--path", str(data / "checkpoint.pt"), "--results", str(tmp_path / "out")]
    assert evaluate.main([*words, "--test-set", "wmt14/full"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
