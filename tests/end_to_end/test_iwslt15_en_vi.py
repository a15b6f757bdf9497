"""IWSLT'15 English-Vietnamese from files with the published layout to BLEU-1, with each step as a process."""

import subprocess
import sys

import pytest
from commands import succeed
from forked import USER_DIR
from iwslt15_files import write_files

from luna_fairseq.translation import prepare_iwslt15_en_vi, score

TINY = (
    "--cpu --num-workers 0 --max-update 4 --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16"
    " --encoder-ffn-embed-dim 24 --encoder-attention-heads 2 --decoder-attention-heads 2"
).split()


@pytest.mark.slow
def test_the_steps(tmp_path, capsys):
    mirror, data, run = write_files(tmp_path / "mirror"), tmp_path / "data", tmp_path / "run"
    words = ["--destdir", str(data), "--mirror", str(mirror), "--min-count", "2", "--workers", "1"]
    assert prepare_iwslt15_en_vi.main(words) == 0
    line = [sys.executable, "-m", "luna_fairseq.commands.train", "iwslt15_en_vi/informer", str(data), *TINY]
    trained = subprocess.run([*line, "--save-dir", str(run)], capture_output=True, text=True)
    assert trained.returncode == 0, (trained.stdout + trained.stderr)[-3000:]
    path = ("--user-dir", USER_DIR, data, "--path", run / "checkpoint_last.pt", "--cpu")
    output = succeed("generate", *path, "--beam 1 --max-len-b 9 --skip-invalid-size-inputs-valid-test")
    (tmp_path / "generate.out").write_text(output, encoding="utf-8")
    reference = str(data / "plain" / "test.vi")
    capsys.readouterr()
    words = [str(tmp_path / "generate.out"), "--reference", reference, "--bleu-1", "--tokenize", "none"]
    assert score.main(words) == 0 and "BLEU-1 = " in capsys.readouterr().out
