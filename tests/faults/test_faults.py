"""A small part of the campaign of faults finds no failure. ``make faults`` runs the whole campaign."""

import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).resolve().with_name("campaign.py")
PART = "0.03"


def read_counts(text):
    """Parse the table in ``text``, and return {fault: numbers}."""
    lines = [[c.strip() for c in line.strip("| \n").split("|")] for line in text.splitlines() if "|" in line]
    return {line[0]: line[1:] for line in lines if len(line) == 6}


@pytest.mark.slow
def test_a_part_of_the_campaign_has_no_failure(tmp_path):
    page = tmp_path / "faults.md"
    page.write_text("# Faults\n\n## Counts\n\nearlier counts\n", encoding="utf-8")
    words = ("--part", PART, "--seed", "2", "--folder", str(tmp_path), "--write", str(page))
    done = subprocess.run(
        [sys.executable, str(CAMPAIGN), *words], capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    total = read_counts(done.stdout)["all"]
    assert int(total[0]) > 15 and total[3] == "-"
    written = page.read_text(encoding="utf-8")
    assert written.startswith("# Faults\n") and "earlier counts" not in written
    assert read_counts(written)["all"] == total
    assert f"--part {PART} --seed 2" in written
    assert [path.name for path in tmp_path.iterdir()] == ["faults.md"]
