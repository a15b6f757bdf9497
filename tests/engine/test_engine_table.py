"""Every patch of fairseq describes itself, is applied if it is needed, and can be left out."""

from pathlib import Path

import pytest
from forked import run_code

import luna_fairseq  # noqa: F401  changes fairseq
from luna_fairseq.engine import listing
from luna_fairseq.engine.patch import APPLIED, NOT_NEEDED, RESULTS, RUNS
from luna_fairseq.engine.table import SWITCH, TABLE, left_out_patches
from luna_fairseq.engine.versions import is_at_least
from luna_fairseq.errors import InputError

NAMES = [patch.name for patch in TABLE]


def test_every_patch_describes_itself():
    assert len(set(NAMES)) == len(NAMES)
    targets = [target for patch in TABLE for target, _ in patch.replacements if target]
    assert len(set(targets)) == len(targets)  # one function replaces a function of fairseq
    for patch in TABLE:
        assert patch.prevents.endswith(".") and patch.versions and patch.replacements, patch.name
        assert patch.importance in (RUNS, RESULTS), patch.name
        assert "," not in patch.name and patch.name == patch.name.lower()


@pytest.mark.parametrize("patch", TABLE, ids=NAMES)
def test_every_patch_is_applied_or_not_needed(patch):
    assert patch.state in (APPLIED, NOT_NEEDED)
    if patch.versions == "every version so far":
        assert patch.state == APPLIED
    if patch.versions == "fairseq 0.12.2":
        assert patch.state == (NOT_NEEDED if is_at_least("fairseq", 0, 12, 3) else APPLIED)


def test_the_listing_names_every_patch_and_the_versions():
    text = "\n".join(listing.format_report())
    assert all(f"\n  {name}\n" in text for name in NAMES)
    assert all(f"  {package} " in text for package in ("Python", "fairseq", "torch", "numpy"))
    assert f"applied: {sum(patch.state == APPLIED for patch in TABLE)}\n" in text
    assert all(len(line) <= 110 or "/" in line for line in text.splitlines())


def test_the_page_about_changes_names_every_patch():
    page = (Path(__file__).resolve().parents[2] / "docs" / "fairseq_changes.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page] == []


def test_fairseq_is_unchanged_without_patches():
    code = """
import luna_fairseq
from luna_fairseq.engine import listing, table
from luna_fairseq.engine.patch import find_target
needed = [patch for patch in table.TABLE if patch.is_needed()]
places = [find_target(target) for patch in needed for target, _ in patch.replacements]
print([place for place in places if place[0] and hasattr(getattr(*place), "patched_by")])
print(*listing.format_report(), sep="\\n")
"""
    printed = run_code(code, **{SWITCH: ", ".join(NAMES)})
    assert printed.startswith("[]\n"), printed[:2000]
    assert f"left out: {len(NAMES)} (by {SWITCH})" in printed and "applied: 0" in printed


def test_names_to_leave_out_and_an_unknown_name(monkeypatch):
    monkeypatch.setenv(SWITCH, " stopping,,whole-files ")
    assert left_out_patches() == {"stopping", "whole-files"}
    monkeypatch.setenv(SWITCH, "stopping, stoping")
    with pytest.raises(InputError, match=f"{SWITCH} .*stoping.*, stopping"):
        left_out_patches()
