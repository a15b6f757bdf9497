"""--help of commands: cheap, opened by a sentence and ended by an example."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("translation", "masked_lm", "examples", "lra", "commands")
PROGRAMS = {
    name: module
    for name, module in re.findall(
        r'"(luna-[\w-]+) = luna_fairseq\.([\w.]+):main"', (ROOT / "setup.py").read_text(encoding="utf-8")
    )
    if module.startswith(ROOMS)
}
HELP = """
import importlib, sys
try:
    importlib.import_module({module!r}).main(["--help"])
except SystemExit as end:
    assert not end.code
print("imported:", *sorted({{"torch", "fairseq"}} & set(sys.modules)))
"""


def test_the_commands_are_found():
    assert len(PROGRAMS) == 17


@pytest.mark.parametrize("name", PROGRAMS)
def test_help(name):
    module = PROGRAMS[name]
    module = module if module.startswith("examples") else f"luna_fairseq.{module}"
    command = [sys.executable, "-c", HELP.format(module=module)]
    output = subprocess.run(command, cwd=str(ROOT), check=True, capture_output=True, text=True).stdout
    text, _, imported = output.partition("imported:")
    assert not imported.strip()
    paragraphs = text.strip().split("\n\n")
    sentence = " ".join(paragraphs[1].split())
    assert re.fullmatch(r"[A-Z].*\.", sentence) and ". " not in sentence
    assert re.match(rf"example:\n  {name} ", paragraphs[-1])
