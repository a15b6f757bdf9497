"""The cells of the quickstart notebook run in order."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "quickstart.ipynb"


def code_cells():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_cells_are_python_and_have_their_outputs():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert len(code_cells()) >= 4
    for cell in cells:
        if cell["cell_type"] == "code":
            ast.parse("".join(cell["source"]))
            assert cell["outputs"], "execute the notebook before it is committed"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    script = tmp_path / "quickstart.py"
    script.write_text("\n\n".join(code_cells()), encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=str(tmp_path),
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "BLEU" in done.stdout and "->" in done.stdout
