"""The ground floor stands alone: ops, plain modules and optimizer with torch only; and when the rest is
registered."""

import re
import sys
from functools import partial
from pathlib import Path

import pytest
from forked import TORCH, run_code

ROOT = Path(__file__).resolve().parents[1]
# Every finder as it is, but blind to these packages: importing them fails as where they are not installed.
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
from luna_fairseq.ops import causal_luna, luna_attention
from luna_fairseq.optim import Apollo, milestone_lr
import luna_fairseq.optim.apollo

x, packed = torch.randn(7, 2, 12), PackedEmbedding(5, 12)(torch.tensor([7, 3]))[0]
attention, causal = LunaAttention(12, 3), LunaCausalAttention(12, 3)
optimizer = Apollo([*attention.parameters(), *causal.parameters()], lr=0.01)
y, packed, _ = attention(x, packed, x)
(causal(y, packed).sum() + packed.sum()).backward()
optimizer.step()
assert milestone_lr(5, peak_lr=1.0, milestones=[3]) == 0.1
"""
    )


def test_without_fairseq_a_model_says_in_one_line_what_to_install():
    requests = [
        "import luna_fairseq.models",
        "from luna_fairseq import LunaModel",
        "luna_fairseq.models",
        "from luna_fairseq.modules import LunaEncoder",
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
    line = (
        "MissingRequirementError luna_fairseq works inside fairseq, "
        "which this Python does not have: pip install "
    )
    assert out.splitlines() == [line + engine] * len(requests)


def test_what_is_not_there_is_an_attribute_error():
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


@pytest.mark.parametrize(
    "code",
    [
        "import fairseq, luna_fairseq",
        "from luna_fairseq import LunaModel",
        "import luna_fairseq.lra.task, luna_fairseq.models.luna_lm",
        # fairseq's --user-dir after something else was imported from the same folder
        "import luna_fairseq.ops\nfrom argparse import Namespace\nfrom fairseq import utils\n"
        "utils.import_user_module(Namespace(user_dir='luna_fairseq'))",
        # the same by a link, as one lies beside fairseq
        "import luna_fairseq.ops, os, tempfile\nfrom argparse import Namespace\nfrom fairseq import utils\n"
        "with tempfile.TemporaryDirectory() as folder:\n    link = os.path.join(folder, 'luna_fairseq')\n"
        "    os.symlink(luna_fairseq.__path__[0], link)\n"
        "    utils.import_user_module(Namespace(user_dir=link))",
    ],
)
def test_everything_is_registered(code):
    passes(code + REGISTERED)


def test_what_reads_checkpoints_or_registries_has_them_mended_and_filled():
    """A command's own import of this package comes before fairseq's, and registers nothing."""
    wants = re.compile(
        r"^ *from fairseq(\.\w+)* import .*\b(checkpoint_utils|hub_utils|options|\w+_REGISTRY)\b", re.M
    )
    has = re.compile(
        r"^ *(import luna_fairseq\.(models|engine)|from luna_fairseq\.models\b|luna_fairseq\.register\(\))",
        re.M,
    )
    files = [
        path
        for path in (ROOT / "luna_fairseq").rglob("*.py")
        if wants.search(path.read_text(encoding="utf-8"))
    ]
    rooms = {path: path.relative_to(ROOT / "luna_fairseq").parts[0] for path in files}
    # checks/ is called by these two.
    others = [path for path in files if rooms[path] not in ("engine", "models", "checks")]
    assert len(others) >= 4
    assert [str(path) for path in others if not has.search(path.read_text(encoding="utf-8"))] == []
