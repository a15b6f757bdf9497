"""fairseq-train with the GPU kernels of causal attention: Triton's interpreter, and an unsuitable GPU."""

import os
import re
import subprocess
import sys

import pytest
from commands import TINY, plugin, refused
from forked import ROOT, split
from reversal import preprocess, write_corpus
from saved_training import load

pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3 or later")
UPDATES = 20
TRAINING = f"""
    -s src -t tgt -a luna {TINY} --projection-length 4 --share-all-embeddings --optimizer sgd --lr 0.1
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout 0.1 --batch-size 4
    --num-workers 0 --max-update {UPDATES} --disable-validation --log-format simple --log-interval 1
"""
# Code of a --user-dir that simulates a GPU: one of capability 7.0, and one of 8.0 for which NVIDIA's
# assembler fails.
HEAD = """
import torch, luna_fairseq
from luna_fairseq.modules import luna_causal_attention as attention
from luna_fairseq.ops.causal_luna import triton as form

here = form.why_not_triton_here
"""
PLANTED = {
    "older": """
attention.why_not_triton_here = lambda device: here(torch.device("cuda", 0))
torch.version.cuda, torch.cuda.get_device_capability = "12.6", lambda device: (7, 0)
""",
    "assembler": """
import sys
from triton.runtime import driver
sys.path.append({ops!r})
from compiled_kernels import Driver

attention.why_not_triton_here = form.why_not_triton_here = lambda device: ""
driver.set_active(Driver(80))
""",
}
SAID = {"older": "8.0 or later, not 7.0. Use auto", "assembler": "PTXASError: .* parallel"}
# Assembler that prints its version, and fails otherwise.
ASSEMBLER = (
    '#!/bin/sh\n[ "$1" = --version ] && echo "Cuda compilation tools, release 12.4, V12.4.99" || exit 1\n'
)


@pytest.mark.parametrize("kind", PLANTED)
def test_a_gpu_on_which_they_cannot_run_is_an_error_of_one_line(kind, data, tmp_path, monkeypatch):
    folder, assembler = tmp_path / f"planted_{kind}", tmp_path / "ptxas"
    folder.mkdir()
    (folder / "__init__.py").write_text(HEAD + PLANTED[kind].format(ops=str(ROOT / "tests" / "ops")))
    assembler.write_text(ASSEMBLER)
    assembler.chmod(0o755)
    for name, value in (("TRITON_PTXAS_PATH", assembler), ("TRITON_CACHE_DIR", tmp_path / "cache")):
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    options = "--luna-backend triton --save-dir", tmp_path
    said = refused("train", "--user-dir", folder, data, TRAINING, *options)
    assert re.search(SAID[kind], said)


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "--causal-decay --untie-luna-kv"])
def test_losses_are_those_of_the_chunkwise_form(options, tmp_path):
    """Losses and weights of 20 updates are equal up to rounding, for padded sentences of one to three chunks.

    The optimizer is SGD. Adam would amplify gradients that consist of rounding errors alone, such as those of
    key biases.
    """
    write_corpus(tmp_path, {"train": 40, "valid": 4, "test": 4}, longest=34)
    bin = preprocess(tmp_path)
    found = {}
    for form in ("chunk", "triton"):
        words = split([*plugin(bin), TRAINING, options, f"--luna-backend {form} --save-dir", tmp_path / form])
        environment = {
            **os.environ,
            "TRITON_INTERPRET": "1",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        command = [sys.executable, "-m", "fairseq_cli.train", *words]
        done = subprocess.run(command, env=environment, cwd=str(ROOT), capture_output=True, text=True)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        losses = [float(x) for x in re.findall(r"train_inner .*\bloss=([\d.]+)", done.stdout + done.stderr)]
        found[form] = losses, load(tmp_path / form / "checkpoint_last.pt")["model"]
    (expected, weights), (losses, same) = found["chunk"], found["triton"]
    assert len(losses) == UPDATES and losses == pytest.approx(expected, abs=1.1e-3)
    assert max(losses) - min(losses) > 0.1
    for name, x in weights.items():
        assert (same[name] - x).norm() <= 1e-5 * x.norm(), name
