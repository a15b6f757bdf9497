"""A part of the campaign of faults finds nothing; `make faults` does the whole."""

import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).resolve().with_name("campaign.py")
PART = "0.03"


def counts(output):
    """{(fault, where): its other cells} of the table."""
    rows = [[c.strip() for c in line.strip("| \n").split("|")] for line in output.splitlines() if "|" in line]
    return {(row[0], row[1]): row[2:] for row in rows if len(row) == 7}


@pytest.mark.slow
def test_a_part_of_the_campaign(tmp_path):
    page = tmp_path / "faults.md"
    page.write_text("# Faults\n\n| fault | in |\n", encoding="utf-8")
    words = ("--part", PART, "--seed", "2", "--folder", str(tmp_path), "--write", str(page))
    done = subprocess.run(
        [sys.executable, str(CAMPAIGN), *words], capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    total = counts(done.stdout)["all", ""]
    assert int(total[0]) > 15 and total[3] == "-"
    written = page.read_text(encoding="utf-8")
    assert written.startswith("# Faults\n") and counts(written)["all", ""] == total
    assert f"--part {PART} --seed 2" in written
    assert [path.name for path in tmp_path.iterdir()] == ["faults.md"]
