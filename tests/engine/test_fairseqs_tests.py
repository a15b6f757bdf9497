"""fairseq's own tests have the same outcomes with and without this package.

    LUNA_FAIRSEQ_TESTS=/path/to/fairseq/tests make test-slow

Give the folder of fairseq's repository, because no package contains it, with examples/ beside it. The words
in LUNA_FAIRSEQ_TESTS_WORDS go to pytest, such as "test_train.py -k resume".
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = os.environ.get("LUNA_FAIRSEQ_TESTS", "")
# These tests pass without this package and fail with it, on purpose.
INTENDED = {
    # The test loads an ensemble of models with two dictionaries.
    "tests/test_checkpoint_utils.py::TestCheckpointUtils::test_load_model_ensemble_and_task",
}


def run_tests(is_imported):
    """Run fairseq's tests, and return the outcome of each test by name.

    Args:
        is_imported: import luna_fairseq before the tests.
    """
    folder = Path(FOLDER).resolve()
    names = [str(Path(folder.name, path.name)) for path in sorted(folder.iterdir()) if path.name != "gpu"]
    given = os.environ.get("LUNA_FAIRSEQ_TESTS_WORDS", "").split()
    words = [f"{folder.name}/{word}" if (folder / word).exists() else word for word in given] or names
    paths = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}
    environment.update({"LUNA_FAIRSEQ_IMPORTED": "1"} if is_imported else {})
    options = "-p fairseq_alone -p no:cacheprovider -q -rA --tb=no --continue-on-collection-errors".split()
    line = [sys.executable, "-m", "pytest", *options, *words]
    done = subprocess.run(line, cwd=str(folder.parent), env=environment, capture_output=True, text=True)
    found = re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED) (\S+::\S+)", done.stdout, re.MULTILINE)
    assert found, (done.stdout + done.stderr)[-3000:]
    return {test: outcome for outcome, test in found}


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason="LUNA_FAIRSEQ_TESTS names no folder with fairseq's tests")
def test_tests_pass_with_this_package():
    without, with_package = run_tests(is_imported=False), run_tests(is_imported=True)
    worse = {
        test for test, outcome in without.items() if outcome == "PASSED" and with_package.get(test) != outcome
    }
    assert worse <= INTENDED, sorted(worse - INTENDED)
