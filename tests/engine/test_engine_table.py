"""Every change is an entry that says what it does, is in force where it is needed, and can be left out."""

from pathlib import Path

import pytest
from forked import run_code

import luna_fairseq  # noqa: F401  mends fairseq
from luna_fairseq.engine import listing
from luna_fairseq.engine.mend import MENDED, NOT_NEEDED, RIGHT, RUNS
from luna_fairseq.engine.table import SWITCH, TABLE, names_left_out
from luna_fairseq.engine.underneath import at_least
from luna_fairseq.errors import InputError

NAMES = [mend.name for mend in TABLE]


def test_every_entry_says_what_it_does():
    assert len(set(NAMES)) == len(NAMES)
    targets = [target for mend in TABLE for target, _ in mend.changes if target]
    assert len(set(targets)) == len(targets)  # what is around one function is one function
    for mend in TABLE:
        assert mend.prevents.endswith(".") and mend.versions and mend.changes, mend.name
        assert mend.importance in (RUNS, RIGHT), mend.name
        assert "," not in mend.name and mend.name == mend.name.lower()


@pytest.mark.parametrize("mend", TABLE, ids=NAMES)
def test_every_entry_is_in_force_or_not_needed(mend):
    assert mend.state in (MENDED, NOT_NEEDED)
    if mend.versions == "every version so far":
        assert mend.state == MENDED
    if mend.versions == "fairseq 0.12.2":
        assert mend.state == (NOT_NEEDED if at_least("fairseq", 0, 12, 3) else MENDED)


def test_the_listing_names_every_entry_and_what_is_underneath():
    text = "\n".join(listing.lines())
    assert all(f"\n  {name}\n" in text for name in NAMES)
    assert all(f"  {package} " in text for package in ("Python", "fairseq", "torch", "numpy"))
    assert f"mended: {sum(mend.state == MENDED for mend in TABLE)}\n" in text
    assert all(len(line) <= 110 or "/" in line for line in text.splitlines())


def test_the_page_about_engines_names_every_entry():
    page = (Path(__file__).resolve().parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page] == []


def test_all_of_them_left_out():
    """fairseq is then as it was."""
    code = """
import luna_fairseq
from luna_fairseq.engine import listing, mend, table
places = [mend.find(target) for entry in table.TABLE for target, _ in entry.changes]
print([place for place in places if place[0] and hasattr(getattr(*place), "mended_by")])
print(*listing.lines(), sep="\\n")
"""
    printed = run_code(code, **{SWITCH: ", ".join(NAMES)})
    assert printed.startswith("[]\n"), printed[:2000]
    assert f"left out: {len(NAMES)} (by {SWITCH})" in printed and "mended: 0" in printed


def test_names_with_commas_between_and_one_that_is_not_in_the_table(monkeypatch):
    monkeypatch.setenv(SWITCH, " stopping,,whole-files ")
    assert names_left_out() == {"stopping", "whole-files"}
    monkeypatch.setenv(SWITCH, "stopping, stoping")
    with pytest.raises(InputError, match=f"^{SWITCH} names stoping; what can be left out is .*, stopping"):
        names_left_out()
