"""Which parts of the package may import which, and the side effects of importing the package.

The direction of imports is ops -> modules -> anchored -> models -> jobs and extras, and files -> text ->
jobs. Jobs do not import each other, and the core (ops, modules, optim) imports only torch. Imports within
functions count, and so do ``import_module`` and ``__import__`` with literal names or f-strings.
"""

import ast
import sys
from functools import partial
from pathlib import Path

import pytest
from forked import TORCH, run_code

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "luna_fairseq"
# Top-level modules that every folder may import. They import no folder themselves.
SHARED = {"child_processes", "command_errors", "errors", "loggers", "progress", "provenance", "requirements"}
# ``luna_fairseq.register`` imports all that registers with fairseq, jobs included. This is what --user-dir is
# for, so folders that need registered models may call it.
MODELS = {"ops", "modules", "anchored", "models", "register"}
BELOW_COMMANDS = {*MODELS, "checks", "engine", "optim", "files", "text"}
BELOW_JOBS = {*BELOW_COMMANDS, "commands"}
JOBS = {"translation", "masked_lm", "lra", "streaming"}
BELOW_EXTRAS = {*BELOW_JOBS, *JOBS, "peers", "huggingface"}
# Folders that each folder may import, besides itself and the shared modules.
MAY_IMPORT = {
    "ops": set(),
    "optim": {"checks"},  # bounds of the options, in the adapters
    "checks": set(),
    "engine": {"checks", "optim", "files", "text"},
    "modules": {"ops"},
    "anchored": {"ops", "modules"},
    "models": {"ops", "modules", "anchored", "checks", "engine", "files", "text", "register"},
    "peers": {*MODELS, "checks"},
    "files": {"checks"},
    "text": {"files"},
    "commands": BELOW_COMMANDS,
    **{job: BELOW_JOBS for job in JOBS},
    "huggingface": BELOW_JOBS,
    "report": BELOW_EXTRAS,
    "benchmark": BELOW_EXTRAS,
}
# The core and the extension need only torch, except for these adapters, which register the optimizer and the
# schedule. The core's __init__ files import them on request only.
CORE = {"ops", "modules", "optim", "anchored"}
NEED_FAIRSEQ = {
    "optim/fairseq_apollo.py",
    "optim/fairseq_milestone.py",
}
# Folder that defines a name which ``from luna_fairseq import NAME`` imports on request.
BEHIND = {name: "models" for name in ("LunaClassifier", "LunaLanguageModel", "LunaMaskedLM", "LunaModel")}


def read_name(node, module):
    """Return the value of a string expression, or None. Unknown parts of an f-string become ``*``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(part.value)
        else:
            parts.append(module if getattr(part.value, "id", "") == "__name__" else "*")
    return "".join(parts)


def find_imports(source, module):
    """Yield (line, dotted name) of everything that a module imports.

    Args:
        source: text of the module.
        module: dotted name of the module, or of the package for an ``__init__.py``.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno}: write the whole name"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if function in ("import_module", "__import__"):
                name = read_name(node.args[0], module)
                if name is not None:
                    yield node.lineno, name
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "luna_fairseq":
            yield node.lineno, f"luna_fairseq.{node.attr}"


def find_upward_imports(folder, source, module="luna_fairseq.x"):
    """Return (line, folder) of the imports that are not allowed for a file in ``folder``."""
    allowed = {folder, *SHARED, *MAY_IMPORT.get(folder, ())}
    found = []
    for line, name in find_imports(source, module):
        top, _, rest = name.partition(".")
        part = rest.split(".")[0]
        part = BEHIND.get(part, part)
        known = part in MAY_IMPORT or part in SHARED or part in ("register", "*")
        if top == "luna_fairseq" and known and part not in allowed:
            found.append((line, part))
    return found


def module_of(path):
    """Return the dotted name of the module in a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_every_folder_and_shared_module_is_listed():
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(MAY_IMPORT)
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", *SHARED}


@pytest.mark.parametrize("folder", sorted({*MAY_IMPORT, *SHARED}))
def test_imports_point_downwards(folder):
    paths = [PACKAGE / f"{folder}.py"] if folder in SHARED else sorted((PACKAGE / folder).rglob("*.py"))
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {part}"
        for path in paths
        for line, part in find_upward_imports(folder, path.read_text(encoding="utf-8"), module_of(path))
    ]
    assert not found


def test_shared_modules_import_each_other_in_one_direction():
    imports = {}
    for name in SHARED:
        source = (PACKAGE / f"{name}.py").read_text(encoding="utf-8")
        names = [found.split(".")[1:2] for _, found in find_imports(source, f"luna_fairseq.{name}")]
        imports[name] = {part for parts in names for part in parts if part in SHARED}
    while imports:
        free = {name for name, needed in imports.items() if not needed & set(imports)}
        assert free, f"import each other in a circle: {sorted(imports)}"
        imports = {name: needed for name, needed in imports.items() if name not in free}


@pytest.mark.parametrize(
    "line, part",
    [
        ("import luna_fairseq.engine", "engine"),
        ("from luna_fairseq import engine", "engine"),
        ("def f():\n    from luna_fairseq.engine.table import patch_fairseq", "engine"),
        ("import_module('luna_fairseq.engine')", "engine"),
        ("importlib.import_module(f'luna_fairseq.engine.{name}')", "engine"),
        ("import_module(f'luna_fairseq.{name}')", "*"),
        ("__import__('luna_fairseq.engine')", "engine"),
        ("from luna_fairseq import LunaModel", "models"),
        ("luna_fairseq.register()", "register"),
        ("import_module(f'{__name__}.engine')", "engine"),
    ],
)
def test_an_upward_import_is_found(line, part):
    assert [name for _, name in find_upward_imports("modules", line, "luna_fairseq")] == [part]


@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python does not list the standard library")
@pytest.mark.parametrize("folder", sorted(CORE))
def test_the_core_imports_torch_alone(folder):
    allowed = {*sys.stdlib_module_names, "torch", "triton", "luna_fairseq"}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        if path.relative_to(PACKAGE).as_posix() not in NEED_FAIRSEQ
        for line, name in find_imports(path.read_text(encoding="utf-8"), module_of(path))
        if name.split(".")[0] not in allowed
    ]
    assert not found


def test_modules_that_read_checkpoints_or_registries_import_the_engine_first():
    """Otherwise fairseq would be used before it is patched, and names of this package would be unknown."""
    needing = ("checkpoint_utils", "hub_utils", "options")
    for path in sorted(PACKAGE.rglob("*.py")):
        folder = path.relative_to(PACKAGE).parts[0]
        if folder in ("engine", "models", "checks"):  # checks/ is called by the two others
            continue
        imported = [name for _, name in find_imports(path.read_text(encoding="utf-8"), module_of(path))]
        from_fairseq = [name.split(".")[-1] for name in imported if name.startswith("fairseq.")]
        if any(name in needing or name.endswith("_REGISTRY") for name in from_fairseq):
            first = ("luna_fairseq.models", "luna_fairseq.engine", "luna_fairseq.register")
            assert any(name.startswith(first) for name in imported), path


# All finders without these packages, so that importing them fails as if they were not installed.
WITHOUT = """
import sys
class Blind:
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, *args):
        hidden = name.split(".")[0] in ("fairseq", "fairseq_cli", "omegaconf", "hydra")
        return None if hidden else self.finder.find_spec(name, *args)
sys.meta_path[:] = map(Blind, sys.meta_path)
"""
REGISTERED = """
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim import OPTIMIZER_REGISTRY
from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY
from fairseq.tasks import TASK_REGISTRY
assert "milestone" in LR_SCHEDULER_REGISTRY and "apollo" in OPTIMIZER_REGISTRY
assert "luna_base" in ARCH_MODEL_REGISTRY and "luna_softmax_cross" in ARCH_MODEL_REGISTRY
assert "lra-text" in TASK_REGISTRY and "lra_cross_entropy" in CRITERION_REGISTRY
"""


passes = partial(run_code, folder=ROOT, imported=TORCH)


def test_without_fairseq_the_mathematics_and_the_optimizer_work():
    passes(
        WITHOUT
        + """
import torch
from luna_fairseq.modules import LunaAttention, LunaCausalAttention, PackedEmbedding
from luna_fairseq.modules import DecoderOptions, EncoderOptions, LunaDecoder, LunaEncoder
from luna_fairseq.ops import causal_luna, softmax_attention
from luna_fairseq.optim import Apollo, milestone_lr
import luna_fairseq.optim.apollo

x, packed = torch.randn(7, 2, 12), PackedEmbedding(5, 12)(torch.tensor([7, 3]))[0]
attention, causal = LunaAttention(12, 3), LunaCausalAttention(12, 3)
optimizer = Apollo([*attention.parameters(), *causal.parameters()], lr=0.01)
y, packed, _ = attention(x, packed, x)
sizes = {"embed_dim": 12, "ffn_embed_dim": 20, "num_layers": 2, "num_heads": 3, "projection_length": 5}
embed = torch.nn.Embedding(9, 12, padding_idx=1)
encoded = LunaEncoder(EncoderOptions(**sizes), embed)(torch.randint(2, 9, (2, 7)))
decoder = LunaDecoder(DecoderOptions(**sizes), embed)
output, state = decoder(torch.randint(2, 9, (2, 4)), decoder.read(encoded), keep_state=True)
assert output.x.shape == (2, 4, 12) and state.count.tolist() == [4, 4]
(causal(y, causal.read(packed))[0].sum() + packed.sum()).backward()
optimizer.step()
assert milestone_lr(5, peak_lr=1.0, milestones=[3]) == 0.1
"""
    )


def test_without_fairseq_a_model_says_in_one_line_what_to_install():
    requests = [
        "import luna_fairseq.models",
        "from luna_fairseq import LunaModel",
        "luna_fairseq.models",
        "from luna_fairseq.optim import FairseqApollo",
    ]
    out = passes(
        WITHOUT
        + f"""
import luna_fairseq
for request in {requests}:
    try:
        exec(request)
    except ImportError as error:
        print(type(error).__name__, error)
"""
    )
    engine = "fairseq-fixed==0.12.3.1" if sys.version_info >= (3, 11) else "fairseq==0.12.2"
    line = "MissingRequirementError luna_fairseq needs fairseq, which this Python does not have: pip install "
    assert out.splitlines() == [line + engine] * len(requests)


def test_a_missing_name_is_an_attribute_error():
    import luna_fairseq
    import luna_fairseq.modules
    import luna_fairseq.optim

    for module in (luna_fairseq, luna_fairseq.modules, luna_fairseq.optim):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            module.nothing  # noqa: B018


def test_importing_the_ground_floor_touches_nothing_else():
    code = """
import logging, sys, torch
def rest():
    hooks = [sys.excepthook, sys.displayhook, *sys.meta_path, *sys.path_hooks, *sys.path]
    root = logging.getLogger()
    return hooks, root.level, list(root.handlers), list(root.filters), logging.getLoggerClass()
before, modules = rest(), set(sys.modules)
import luna_fairseq
assert {name.split(".")[0] for name in set(sys.modules) - modules} == {"luna_fairseq"}
import luna_fairseq.ops, luna_fairseq.optim.apollo
import luna_fairseq.modules
assert rest() == before
new = {name.split(".")[0] for name in set(sys.modules) - modules}
assert new == {"luna_fairseq"}, new
"""
    passes(code)


def test_only_the_folder_of_the_package_registers_when_looked_for_in_its_path():
    passes(
        "import luna_fairseq, fairseq, sys\n"
        "assert '/elsewhere' not in luna_fairseq.__path__ and 'luna_fairseq.models' not in sys.modules\n"
        "assert luna_fairseq.__path__[0] in luna_fairseq.__path__ and 'luna_fairseq.models' in sys.modules"
    )


@pytest.mark.parametrize(
    "code",
    [
        "import fairseq, luna_fairseq",
        "from luna_fairseq import LunaModel",
        "import luna_fairseq.lra.task, luna_fairseq.models.luna_lm",
        # fairseq's --user-dir after something else was imported from the same folder
        "import luna_fairseq.ops\nfrom argparse import Namespace\nfrom fairseq import utils\n"
        "utils.import_user_module(Namespace(user_dir='luna_fairseq'))",
        # the same through a symbolic link, such as the one beside fairseq
        "import luna_fairseq.ops, os, tempfile\nfrom argparse import Namespace\nfrom fairseq import utils\n"
        "with tempfile.TemporaryDirectory() as folder:\n    link = os.path.join(folder, 'luna_fairseq')\n"
        "    os.symlink(luna_fairseq.__path__[0], link)\n"
        "    utils.import_user_module(Namespace(user_dir=link))",
    ],
)
def test_everything_is_registered(code):
    passes(code + REGISTERED)
