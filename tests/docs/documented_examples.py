"""The fenced blocks of README.md and docs/, each with the comment above it that says how it is tested.

``<!-- example: FIXTURE -->`` or ``<!-- example: FIXTURE, slow -->``: run as written, in a folder that FIXTURE
fills; the blocks of one page with one fixture run one after the other in one folder. ``<!-- example: not run,
REASON -->``: its commands are not started, but their options are checked, as those of all shell blocks are.
"""

import re
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Tuple

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"^(?:<!-- example: (?P<how>.*?) -->\n)?```(?P<language>bash|python)\n(?P<text>.*?)^```$", re.M | re.S
)


class Example(NamedTuple):
    """One fenced block."""

    page: str
    line: int
    language: str
    text: str
    fixture: str
    slow: bool
    reason: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> List[Path]:
    return [
        ROOT / "README.md",
        *sorted(path for path in (ROOT / "docs").rglob("*.md") if not path.is_symlink()),
    ]


def examples() -> Iterator[Example]:
    """All of them.

    Raises:
        ValueError: a block has no comment above it, or one that is not understood.
    """
    for path in pages():
        text, page = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            fixture, _, rest = (match["how"] or "").partition(", ")
            understood = bool(rest) if fixture == "not run" else fixture and rest in ("", "slow")
            if not understood:
                raise ValueError(f"{page}:{line}: say above the block how it is tested, not {match['how']!r}")
            reason = rest if fixture == "not run" else ""
            yield Example(page, line, match["language"], match["text"], fixture, rest == "slow", reason)


def stories() -> Dict[Tuple[str, str], List[Example]]:
    """(page, fixture) -> the blocks that run there, in their order."""
    found: Dict[Tuple[str, str], List[Example]] = {}
    for example in examples():
        if not example.reason:
            found.setdefault((example.page, example.fixture), []).append(example)
    return found
