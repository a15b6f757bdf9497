"""The optimizer sub-command at tiny sizes. No test looks at a clock."""

import pytest
import torch
from benchmark_checks import check_refused, check_results, no_children, run_command  # noqa: F401

from luna_fairseq.benchmark import apollo
from luna_fairseq.optim.apollo import Apollo

COMMAND = "apollo --preset small --dictionary-size 40".split()


def test_apollo(tmp_path, no_children, capsys):  # noqa: F811
    section = run_command(COMMAND, tmp_path)["apollo"]
    torch_forms = [f"adamw{form}" for form in ("", "-foreach", "-fused") if f"adamw{form}" in section["peers"]]
    assert torch_forms[:2] == ["adamw", "adamw-foreach"]
    check_results(section, [*torch_forms, "apollo-single", "apollo-foreach", "apollo"], cases=1)
    assert "127 tensors" in capsys.readouterr().out


def test_form_that_torch_does_not_have_is_left_out(tmp_path, no_children, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setitem(apollo.OPTIMIZERS[torch.optim.AdamW], "adamw-fused", {"no_such_option": True})
    check_results(run_command(COMMAND, tmp_path)["apollo"], ["adamw", "adamw-foreach", "apollo-single", "apollo-foreach", "apollo"], 1)
    assert "adamw-fused is left out" in capsys.readouterr().out


def test_wrong_step_is_refused(monkeypatch, capsys):
    monkeypatch.setitem(apollo.OPTIMIZERS[Apollo], "apollo-foreach", {"foreach": True, "beta": 0.8})
    monkeypatch.setattr(apollo, "compare_cases", lambda *_: pytest.fail("was timed"))
    check_refused(COMMAND, ["apollo-foreach is not timed", "differs from apollo-single's"], capsys)
