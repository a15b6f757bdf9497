"""Nothing outside ``engine/`` assigns to what belongs to fairseq, torch, numpy, Hydra or the interpreter."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "luna_fairseq"
FOREIGN = {"fairseq", "fairseq_cli", "torch", "numpy", "omegaconf", "hydra", "sys", "logging", "warnings"}
# Attributes of sys that are there to be assigned.
OFFERED = {"argv", "stdout", "stdin", "stderr"}
CHANGING_CALLS = {"update", "setdefault", "pop", "clear", "__setitem__"}  # of a dictionary


def foreign_names(tree):
    """Names that stand for a foreign module or something in it: imported, or assigned from such a name."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                (a.asname or a.name).split(".")[0] for a in node.names if a.name.split(".")[0] in FOREIGN
            }
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FOREIGN:
            names |= {a.asname or a.name for a in node.names}
    for _ in range(3):  # an alias of an alias
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and owner(node.value) in names:
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def named(node):
    """The last word of what is called."""
    return getattr(node, "id", getattr(node, "attr", ""))


def owner(node):
    """The name that a chain of attributes and items, ``vars(...)`` or ``type(...)`` begins with, or None."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Call) and named(node.func) in ("vars", "type", "getattr") and node.args:
        return owner(node.args[0])
    return node.id if isinstance(node, ast.Name) else None


def assignments(source):
    """Line numbers at which ``source`` changes something foreign."""
    tree = ast.parse(source)
    names = foreign_names(tree)
    found = []
    for node in ast.walk(tree):
        targets = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = [part for target in node.targets for part in ast.walk(target)]
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call):
            if named(node.func) in ("setattr", "delattr", "__setattr__", "__delattr__"):
                found += [node.lineno] if owner(node.args[0]) in names else []
            elif named(node.func) in CHANGING_CALLS and isinstance(node.func, ast.Attribute):
                changed = node.func.value
                dictionary = isinstance(changed, ast.Call) or named(changed) in ("__dict__", "modules")
                found += [node.lineno] if dictionary and owner(changed) in names else []
        for target in targets:
            if isinstance(target, (ast.Attribute, ast.Subscript)) and owner(target) in names:
                offered = owner(target) == "sys" and named(target) in OFFERED
                found += [] if offered else [node.lineno]
    return sorted(set(found))


@pytest.mark.parametrize(
    "source",
    [
        "import fairseq.trainer\nfairseq.trainer.Trainer.train_step = None",
        "from fairseq import checkpoint_utils as c\nc.save_checkpoint = None",
        "def f():\n    from fairseq.trainer import Trainer\n    Trainer.a, x = 1, 2",
        "from fairseq.trainer import Trainer\nMine = Trainer\nMine.train_step = None",
        "import fairseq\nutils = fairseq.utils\nutils.item = None",
        "from fairseq import utils\nsetattr(utils, 'item', None)",
        "from fairseq import utils\nobject.__setattr__ if 0 else type.__setattr__(utils, 'item', 1)",
        "from fairseq import utils\nvars(utils)['item'] = None",
        "from fairseq import utils\nutils.__dict__.update(item=None)",
        "from fairseq.models import MODEL_REGISTRY\nMODEL_REGISTRY['luna'] = None",
        "from fairseq.trainer import Trainer\ndel Trainer.train_step",
        "import numpy as np\nnp.compat: object = 1",
        "import torch\ntorch.nn.Linear.x += 1",
        "import sys\nsys.excepthook = print",
        "import sys\nsys.modules['fairseq.x'] = sys",
    ],
)
def test_what_is_found(source):
    assert assignments(source) == [len(source.splitlines())]


@pytest.mark.parametrize(
    "source",
    [
        "from fairseq.trainer import Trainer\ntrainer = Trainer()\ntrainer.cfg = 1",
        "from fairseq.trainer import Trainer\nclass Mine(Trainer):\n    def f(self):\n        self.a = 2",
        "import torch\nx = torch.zeros(3)\nx[0] = 1\ny = [torch.nn]\ny[0] = 2",
    ],
)
def test_what_is_no_change(source):
    assert assignments(source) == []


def test_nothing_outside_the_engine_changes_them():
    files = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "engine" not in path.parents]
    assert len(files) > 50
    found = {str(path.relative_to(PACKAGE)): assignments(path.read_text(encoding="utf-8")) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}
