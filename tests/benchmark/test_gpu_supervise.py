"""Jobs in processes of their own: whatever one of them does, the others are done and their rows kept."""

import os
import signal
import time
from functools import partial

from luna_fairseq.benchmark.gpu.page import Found, write
from luna_fairseq.benchmark.gpu.supervise import OUT_OF_TIME, Job, Section, run_section

ABOUT = {"commit": "abc"}
TIMES = {"speed_ratio": {}, "extra_bytes": 0, "roofline": {}, "form": "chunk"}


def good(n):
    yield {"n": n, "seconds": {"median": 1.0, "q1": 1.0, "q3": 1.0}, **TIMES}


def raises():
    yield from good(7)
    raise ValueError("it is wrong\nand here is how to debug it")


def dies():
    os.kill(os.getpid(), signal.SIGKILL)
    yield {}


def hangs():
    time.sleep(1000)
    yield {}


def section(*works, **options):
    jobs = [Job(f"{getattr(work, '__name__', 'good')} {i}", work) for i, work in enumerate(works)]
    return Section("causal", "Causal attention", "a command", jobs, **options)


def run(found, folder, seconds=100.0):
    seen = []
    outcome = run_section(
        found, time.monotonic() + seconds, folder, lambda outcome: seen.append(len(outcome.rows))
    )
    return outcome, seen


def test_what_fails_dies_or_hangs_costs_itself_alone(tmp_path):
    found = section(partial(good, 0), raises, dies, partial(good, 1), hangs, partial(good, 2), seconds_each=3)
    outcome, seen = run(found, tmp_path)
    assert [row["n"] for row in outcome.rows] == [0, 7, 1, 2]
    assert outcome.done == ["good 0", "good 3", "good 5"]
    assert outcome.failed == {
        "raises 1": "ValueError: it is wrong",
        "dies 2": "the process was ended by SIGKILL",
        "hangs 4": "ended after 3 s",
    }
    assert len(seen) > 2 and seen[0] < 4  # told of rows before the end

    write(tmp_path, ABOUT, [Found(found, outcome)])
    page = (tmp_path / "gpu.md").read_text()
    assert "- FAILED dies 2: the process was ended by SIGKILL" in page
    assert "Jobs that failed: 3; left out for want of time: 0." in page


def test_what_there_is_no_time_for_is_named(tmp_path):
    found = section(partial(good, 0), hangs, partial(good, 1))
    outcome, _ = run(found, tmp_path, seconds=4)
    assert [row["n"] for row in outcome.rows] == [0]
    assert outcome.failed == {"hangs 1": OUT_OF_TIME} and outcome.left_out == ["good 2"]
    write(tmp_path, ABOUT, [Found(found, outcome)])
    assert "left out for want of time: good 2" in (tmp_path / "gpu.md").read_text()


def test_several_at_once_lose_nothing(tmp_path):
    outcome, _ = run(section(*(partial(good, n) for n in range(5)), dies, processes=3), tmp_path)
    assert sorted(row["n"] for row in outcome.rows) == [0, 1, 2, 3, 4] and list(outcome.failed) == ["dies 5"]
