"""Optional packages: what works without them, and the message that names the extra to install."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from luna_fairseq.errors import MissingRequirementError
from luna_fairseq.requirements import EXTRAS, import_package, install_advice

ROOT = Path(__file__).resolve().parents[1]
# Finder before all others that reports the given packages as missing.
HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def run_without(packages, code):
    """Run ``code`` in a Python process in which ``packages`` cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", f"HIDDEN = {set(packages)!r}\n{HIDE}\n{code}"],
        cwd=str(ROOT),
        capture_output=True,
        text=True,
    )


def test_ops_modules_and_optim_need_torch_alone():
    code = (
        "import torch, luna_fairseq.ops, luna_fairseq.ops.causal_luna\n"
        "from luna_fairseq.modules import LunaAttention, LunaCausalAttention, PackedEmbedding\n"
        "from luna_fairseq.optim import Apollo, milestone_lr\n"
        "x, packed = torch.randn(5, 2, 8), torch.randn(3, 2, 8)\n"
        "LunaAttention(8, num_heads=2)(x, packed, context=x)\n"
        "causal = LunaCausalAttention(8, num_heads=2)\n"
        "print(causal(x, causal.read(packed))[0].shape[0])"
    )
    done = run_without(set(EXTRAS) - {"numpy"}, code)
    assert done.returncode == 0 and done.stdout.strip() == "5", done.stderr


@pytest.mark.parametrize(
    "package, code, extra",
    [
        ("sacremoses", "from luna_fairseq.text.moses import tokenize; tokenize('a b', 'en')", "moses"),
        ("subword_nmt", "from luna_fairseq.text import merges; merges.learn_merges(['ab'], 1)", "moses"),
        ("PIL", "from luna_fairseq.lra.pixels import pillow; pillow()", "lra"),
        (
            "matplotlib",
            "from pathlib import Path; from luna_fairseq.commands.plots import check_plot;"
            "check_plot(Path('never.png'), '--plot')",
            "report",
        ),
    ],
)
def test_a_missing_package_is_named_with_its_extra(package, code, extra):
    done = run_without({package}, code)
    last = done.stderr.strip().splitlines()[-1]
    assert "MissingRequirementError" in last and f'pip install "luna_fairseq[{extra}]"' in last, done.stderr


def test_sentencepiece_data_need_no_moses():
    done = run_without({"sacremoses", "subword_nmt"}, "import luna_fairseq.text.subword")
    assert done.returncode == 0, done.stderr


def test_every_optional_package_has_an_extra_of_setup():
    extras = set(re.findall(r'(?m)^        "(\w+)": ', (ROOT / "setup.py").read_text(encoding="utf-8")))
    assert set(EXTRAS.values()) <= extras


def test_every_imported_package_is_known():
    """Every imported package is torch, this package, part of Python, or listed in EXTRAS."""
    known = {*EXTRAS, "torch", "luna_fairseq", "triton", "omegaconf", "hydra", "fairseq_cli", "__future__"}
    found = set()
    for path in (ROOT / "luna_fairseq").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {(alias.name.split(".")[0], path) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add((node.module.split(".")[0], path))
    standard = getattr(sys, "stdlib_module_names", None)
    if standard is None:
        pytest.skip("Python 3.10 is the first that lists its modules")
    unknown = {(name, str(path)) for name, path in found if name not in known and name not in standard}
    assert not unknown


def test_advice_is_for_packages_of_the_extras_alone():
    assert install_advice("torch") is None and install_advice(None) is None
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        import_package("no_such_package")
    with pytest.raises(MissingRequirementError, match=r"^--plot needs matplotlib.*luna_fairseq\[report\]"):
        sys.modules["matplotlib.no_such_part"] = None  # type: ignore[assignment]
        try:
            import_package("matplotlib.no_such_part", "--plot")
        finally:
            del sys.modules["matplotlib.no_such_part"]


def test_a_command_names_the_extra_of_a_package_that_it_imports_directly():
    code = "import luna_fairseq.translation.score"
    done = run_without(
        {"sacrebleu"},
        f"import luna_fairseq.command_errors as e, sys; sys.excepthook = e.make_excepthook(print)\n{code}",
    )
    advice = 'sacrebleu, which is not installed: pip install "luna_fairseq[fairseq]"'
    assert done.stderr.strip().splitlines()[-1] == f"luna_fairseq: error: this needs {advice}"


EVERY_COMMAND = """
import importlib, os, sys
from importlib.metadata import distribution
for entry in distribution("luna_fairseq").entry_points:
    if entry.group == "console_scripts" and ".examples." not in entry.value:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            module, function = entry.value.split(":")
            sys.argv = [entry.name, "--help"]
            sys.exit(getattr(importlib.import_module(module), function)())
        print(entry.name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr)
"""


@pytest.mark.skipif(sys.version_info < (3, 9), reason="os.waitstatus_to_exitcode")
def test_every_command_names_a_missing_package_in_one_line():
    """In an environment with torch alone, a command shows its help or the package to install."""
    done = run_without({*EXTRAS, "omegaconf", "hydra"}, EVERY_COMMAND)
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-2000:]
    commands = [line for line in lines if line.startswith("luna-")]
    messages = [line for line in lines if "error:" in line]
    assert len(commands) > 20 and sum(line.endswith(" 1") for line in commands) == len(messages)
    assert all(re.search(r"error: .* needs .*: pip install ", line) for line in messages), messages
