"""scripts/measure_gpu.sh on a CPU: the kernels in Triton's interpreter, and a planted wrong one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from luna_fairseq.benchmark.gpu.__main__ import build_parser, main

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "measure_gpu.sh"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")


def measure(folder, *words):
    pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3 or later")
    command = ["bash", str(SCRIPT), "--device", "cpu", "--out", str(folder), *words]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    found = json.loads((folder / "gpu.json").read_text())
    return done, found, (folder / "gpu.md").read_text()


def test_all_sections_at_small_sizes(tmp_path):
    done, found, page = measure(tmp_path)
    assert done.returncode == 0, done.stderr[-2000:] + page
    assert "The kernels are equal to the definition in 4 of 4 comparisons." in page
    assert {row["dtype"] for row in found["parity"]["rows"]} == {"float32", "bfloat16"}
    kernels = {row["kernel"]: row for row in found["resources"]["rows"]}
    assert 0 < kernels["forward_kernel"]["registers"] <= 255
    assert kernels["forward_kernel"]["occupancy"]["a100"]["programs"] >= 1
    for row in found["causal"]["rows"]:
        roof = row["roofline"]
        assert roof["flops"] > 0 and roof["bytes"] > 0 and roof["bound"] in ("operations", "bytes")
        assert roof["share"] == pytest.approx(roof["least_seconds"] / row["seconds"]["median"])


def test_a_wrong_kernel_is_reported(tmp_path):
    done, found, page = measure(tmp_path, "--plant-wrong-kernel", "--only", "parity")
    assert done.returncode == 1
    wrong = [row for row in found["parity"]["rows"] if not row["equal"]]
    assert wrong and all(row["worst"] > 1e-3 and row["T"] > 32 for row in wrong)
    assert f"**{len(wrong)} of 4 comparisons of the kernels are WRONG**" in page and "- WRONG T 33" in page


@pytest.mark.parametrize(
    "words, said",
    [
        (["--device", "cpu", "--minutes", "0"], "--minutes 0 leaves no time"),
        (["--out", "here/and/there.txt/x", "--device", "cpu", "--only", "nothing"], "cannot write"),
    ],
)
def test_bad_input_gets_one_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "and").mkdir(parents=True)
    (tmp_path / "here" / "and" / "there.txt").touch()
    before = dict(os.environ)
    assert main(words) == 1 and dict(os.environ) == before
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert main([]) == 1 and "torch sees no GPU; --device cpu" in capsys.readouterr().err
    assert build_parser().parse_args([]).minutes == 9
