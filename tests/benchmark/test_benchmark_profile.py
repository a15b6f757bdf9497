"""``--profile``: operations are counted as on paper; no test looks at a clock."""

import pytest
import torch
from benchmark_checks import check_refused, needs_sdpa, no_children, run_command  # noqa: F401

from luna_fairseq.benchmark.measure import Form
from luna_fairseq.benchmark.profiles import profile

COMMAND = "causal --batch 2 --heads 3 --head-dim 4 --projection-length 5 --lengths 7".split()
COMMAND += "--without loop cumsum --profile".split()
PRODUCTS = {
    "a product": lambda: torch.ones(3, 4) @ torch.ones(4, 5),
    "by heads": lambda: torch.ones(2, 3, 4) @ torch.ones(2, 4, 5),
    "added": lambda: torch.ones(3, 5).addmm(torch.ones(3, 4), torch.ones(4, 5)),
    "added in place": lambda: torch.ones(3, 5).addmm_(torch.ones(3, 4), torch.ones(4, 5)),
    "added by heads": lambda: torch.ones(2, 3, 5).baddbmm_(torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
    "a sum": lambda: torch.ones(3, 4) + 1,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_operations_of_a_product(name):
    heads = 2 if "by heads" in name or name == "added by heads" else 1
    found = profile(Form(name, lambda: PRODUCTS[name], lambda: PRODUCTS[name]))
    assert found["operations"] == (0 if name == "a sum" else heads * 2 * 3 * 4 * 5)
    assert 0 <= found["part"] < 1 and found["calls"] >= 2


def test_memory_that_is_written():
    def job():
        return torch.ones(1000) + 1

    assert profile(Form("", lambda: job, lambda: job))["bytes_written"] == 8000


@needs_sdpa
def test_a_table_beside_the_times_and_in_the_file(tmp_path, capsys, no_children):  # noqa: F811
    section = run_command(COMMAND, tmp_path)["causal"]
    out = capsys.readouterr().out
    assert "products: part" in out and "GFLOP/s" in "".join(section["notes"])
    assert [each["form"] for each in section["profiles"]] == ["chunk", "sdpa"] * 2
    cases = [each["case"] for each in section["profiles"]]
    assert cases[::2] == cases[1::2] == [result["case"] for result in section["results"][::2]]
    # Forward, and five products more backward: softmax attention of 2 x 3 heads on 7 positions of width 4.
    forward = 2 * 2 * (2 * 3) * 7 * 7 * 4 // 2
    assert [each["operations"] for each in section["profiles"][1::2]] == [forward, forward * 7 // 2]


def test_a_gpu_has_a_command_of_its_own(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_refused([*COMMAND, "--device", "cuda"], ["--profile is for the CPU"], capsys)
