"""scripts/measure_gpu.sh on a CPU with Triton's interpreter, and parts that fail, die or hang."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from luna_fairseq.benchmark import gpu
from luna_fairseq.benchmark.__main__ import TASKS, build_parser
from luna_fairseq.benchmark.task import select

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "measure_gpu.sh"
WORDS = {**gpu.SETS, "half": "bfloat16"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_the_rehearsal(tmp_path):
    pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3 or later")
    environment = {**os.environ, "PYTHON": sys.executable}
    command = ["bash", str(SCRIPT), "--device", "cpu", "--out", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    page, found = (tmp_path / "gpu.md").read_text(), json.loads((tmp_path / "gpu.json").read_text())
    assert done.returncode == 0, done.stderr[-2000:] + page
    assert "; 0 failed." in page and list(found) == list(gpu.ON_CPU)
    checks = found["parity"]["found"]["causal"]["checks"]
    assert {"chunk", "triton", "decay-triton"} <= set(checks)
    assert 0 < max(error for error in checks.values() if error is not None) < 1
    for task, row, peer in gpu.HEADLINES:
        assert any(
            f"| {task} " in line and f"| {row} " in line and peer in line for line in page.splitlines()
        )


@pytest.mark.parametrize("pieces, name", [(on, name) for on in (gpu.ON_GPU, gpu.ON_CPU) for name in on])
def test_every_part_names_existing_rows_and_cases(pieces, name):
    words = pieces[name][1].format(**WORDS).split()
    args = build_parser().parse_args(words)
    task = TASKS[args.command](args)
    rows = select(task.variants(), args.with_, args.without)
    assert rows and task.cases()
    for headline, row, peer in gpu.HEADLINES:
        assert headline != name or {row, peer} <= set(rows)


def test_parity_and_the_headlines_come_first():
    first = list(gpu.ON_GPU)[:5]
    assert first == ["parity", "causal", "train", "decode", "lra"]
    assert sum(gpu.ON_GPU[name][0] for name in first) < 5 * 60  # at most, whatever hangs


FAKE = """
import json, os, signal, sys, time
path, rest = sys.argv[sys.argv.index("--json") + 1], sys.argv[1:]
bad = {kind!r} if "--without" not in rest else ""
times = {{"median": 1, "q1": 1, "q3": 1}}
measured = {{"case": {{"T": 1}}, "seconds": times, "speed_ratio": {{"sdpa": times}}, "extra_bytes": 0}}
results = [dict(measured, form=form) for form in (["triton", "chunk"] if bad else ["chunk"])]
section = {{"rate": "", "peers": [], "failed": {{}}, "running": "triton" if bad else "", "results": results}}
open(path, "w").write(json.dumps({{"environment": {{}}, "causal": section}}))
if bad == "dies": os.kill(os.getpid(), signal.SIGKILL)
if bad == "hangs": time.sleep(100)
if bad == "raises": raise RuntimeError("CUDA error: a memory access\\nCompile with more.")
"""


@pytest.mark.parametrize(
    "kind, message",
    [
        ("dies", "signal 9"),
        ("hangs", "ended after 2 s"),
        ("raises", "RuntimeError: CUDA error: a memory access"),
    ],
)
def test_a_row_that_fails_dies_or_hangs_is_excluded(kind, message, tmp_path, monkeypatch):
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "__main__.py").write_text(FAKE.format(kind=kind))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpu, "BENCHMARK", "fake")
    found = gpu.run_part(["causal"], 2.0, time.monotonic() + 60)
    assert list(found["failed"]) == ["triton"] and found["failed"]["triton"].endswith(message)
    assert "--without triton" in found["command"]
    page = "\n".join(gpu.format_page({"causal": found}))
    assert "FAILED causal, triton" in page
    # The measurements of the failed row before its failure are kept, and the other rows are listed once.
    assert page.count("| causal | T 1  | triton | sdpa |") == page.count("| causal | T 1  | chunk ") == 1


def test_rows_without_a_definition_are_not_counted_as_equal():
    found = {"causal": {"checks": {"cumsum": None, "chunk": 0.0, "sdpa": None}}}
    page = gpu.format_page({"parity": {"command": "", "failed": {}, "found": found, "seconds": 1}})
    assert "1 rows are equal to their definitions; 0 failed." in page


def test_a_part_without_time_left_is_reported():
    found = gpu.run_part(["causal"], 2.0, time.monotonic() + 1)
    assert found["failed"] == {"all": "not measured: the time limit was reached"}


@pytest.mark.parametrize(
    "words, message",
    [
        (["--device", "cpu", "--minutes", "inf"], "must be above 0, not inf"),
        (
            ["--device", "cpu", "--only", "nothing"],
            "--only nothing: no part has this name. Choose from parity",
        ),
        (["--device", "cuda"], "torch sees no GPU. Use --device cpu"),
        (["--device", "cpu", "--out", "there.txt/x"], "there.txt"),
    ],
)
def test_bad_input_gets_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.txt").touch()
    try:
        status = gpu.main(words)
    except SystemExit as end:
        status = end.code
    assert status not in (0, None)
    assert message in capsys.readouterr().err.splitlines()[-1]
