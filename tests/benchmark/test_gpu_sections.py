"""The sections of a run on a GPU, without one: their command lines are right, their rows have a roofline."""

import pytest

from luna_fairseq.benchmark.gpu.sections import kernels, timings
from luna_fairseq.benchmark.gpu.work import work_of

MACHINE = {
    "device": "NVIDIA H100 80GB HBM3",
    "capability": 90,
    "half": "bfloat16",
    "triton": "3.6.0",
    "bandwidth": 3e12,
    "flops": {"float32": 5e13, "tf32": 4e14, "half": 8e14},
}
TIMINGS = {timing.name: timing for timing in timings("cuda", MACHINE, small=False)}


@pytest.mark.parametrize("name", TIMINGS)
def test_every_section_names_rows_and_cases_that_there_are(name):
    timing = TIMINGS[name]
    task = timing.task()
    rows = task.rows()
    assert set(task.args.without) <= set(rows)
    keys = [job.key for job in timing.times([]).jobs]
    assert len(keys) == len(set(keys)) == len(task.cases()) > 0
    checked = {job.key for job in timing.checks().jobs}
    if name.startswith("causal"):
        assert {"check of triton", "check of chunk"} <= checked
    if name in ("train", "lra", "masked-lm"):
        assert any(key.startswith("check of luna-") for key in checked)


@pytest.mark.parametrize("name", [name for name in TIMINGS if name != "apollo"])
def test_every_row_has_a_roofline(name):
    timing = TIMINGS[name]
    task = timing.task()
    longest = max(task.cases(), key=lambda case: case["T"])
    for form, row in task.rows().items():
        if not (row.optional or form in task.args.without):
            work = work_of(task, longest, form)
            assert work.bytes > 0 and all(flops > 0 for flops in work.flops.values()), form


def test_a_tokens_work_in_a_training_step():
    """Six operations for each of the weights that a token meets, three passes of two."""
    task = TIMINGS["train"].task()
    case = {"sentences": 32, "T": 256}
    flops = sum(work_of(task, case, "transformer-sdpa").flops.values())
    weights = 6 * (4 + 8) * 512**2 + 12 * 2 * 512 * 2048 + 32000 * 512
    attention = 6 * 7 * 256 * 512 * 2 * 2.5  # encoder and cross-attention whole, causal half
    assert flops == pytest.approx(32 * 256 * (6 * weights + attention))


def test_what_a_planted_kernel_and_a_v100_change():
    parity, resources = kernels("cuda", MACHINE, small=False, planted=True)
    assert all(job.work.args[2] for job in parity.jobs) and resources.jobs
    assert {job.work.args[0].capability for job in resources.jobs} == {90}
    old = {**MACHINE, "device": "Tesla V100-SXM2-32GB", "capability": 70, "half": "float16"}
    (parity,) = kernels("cuda", old, small=False, planted=False)
    assert not parity.jobs and "they need compute capability 8.0, and Tesla V100" in parity.notes
    for timing in timings("cuda", old, small=False):
        assert "--dtype float16" in " ".join(timing.words) or timing.name == "apollo"
