"""Find the code blocks of README.md and docs/, and the comments that say how they are tested.

- ``<!-- example: FIXTURE -->`` or ``<!-- example: FIXTURE, slow -->``: the block is run as it is written, in
  a folder with the files of FIXTURE. The blocks of a page with the same fixture run in order in one folder.
- ``<!-- example: not run, REASON -->``: the commands of the block are not run. Their options are checked,
  like those of all shell blocks.
"""

import re
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Tuple

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"^(?:<!-- example: (?P<how>.*?) -->\n)?```(?P<language>bash|python)\n(?P<text>.*?)^```$", re.M | re.S
)


class Example(NamedTuple):
    """Code block of a page.

    Attributes:
        page: path of the page, relative to the repository.
        line: line number of the block.
        language: "bash" or "python".
        text: content of the block.
        fixture: name of the fixture, or "not run".
        slow: True if the block is run in slow tests only.
        reason: reason why the block is not run, otherwise empty.
    """

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
    """Iterate over the code blocks of all pages.

    Raises:
        ValueError: There is no comment above a block, or it is malformed.
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
    """Return the blocks that run in the same folder, in order, by (page, fixture)."""
    found: Dict[Tuple[str, str], List[Example]] = {}
    for example in examples():
        if not example.reason:
            found.setdefault((example.page, example.fixture), []).append(example)
    return found
