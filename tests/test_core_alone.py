"""The paper's Luna stands alone: ops/ and modules/ name nothing of the extension in anchored/."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "luna_fairseq"
CORE = [path for room in ("ops", "modules") for path in sorted((PACKAGE / room).rglob("*.py"))]
EXTENSION = re.compile(
    r"anchor|look_?up|window|segment|diagonal|prior|causal_decay|softmax_?cross|local_parts|token_place|gamma"
)
# Words of other things: attention to a window is a peer's, segment sums are a kernel's.
OTHERS = {"ops/blocks.py": {"windowed_attention", "outside_window", "window"}}


def identifiers(source):
    """Names that ``source`` defines, reads, imports or has as arguments, and strings that are names."""
    for node in ast.walk(ast.parse(source)):
        for field in ("name", "id", "attr", "arg", "asname", "module"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                yield value
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_names_nothing_of_the_extension(path):
    place = path.relative_to(PACKAGE).as_posix()
    if "triton" in place:
        pytest.skip("kernels have segments of their own")
    found = {name for name in identifiers(path.read_text(encoding="utf-8")) if EXTENSION.search(name.lower())}
    assert found <= OTHERS.get(place, set())
