"""The optimizer sub-command at tiny sizes. No test looks at a clock."""

from functools import partial

import pytest
import torch
from benchmark_checks import check_refused, check_results, no_children, run_command  # noqa: F401

from luna_fairseq.benchmark import __main__ as command
from luna_fairseq.benchmark.peers import OPTIMIZERS, Optimizer
from luna_fairseq.optim.apollo import Apollo

COMMAND = "apollo --preset small --dictionary-size 40".split()


def test_apollo(tmp_path, no_children, capsys):  # noqa: F811
    section = run_command(COMMAND, tmp_path)["apollo"]
    torch_forms = [
        f"adamw{form}" for form in ("", "-foreach", "-fused") if f"adamw{form}" in section["peers"]
    ]
    assert torch_forms[:2] == ["adamw", "adamw-foreach"]
    check_results(section, [*torch_forms, "apollo-single", "apollo-foreach", "apollo"], cases=1)
    assert "127 tensors" in capsys.readouterr().out


def test_form_that_torch_does_not_have_is_left_out(tmp_path, no_children, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setitem(OPTIMIZERS, "adamw-fused", Optimizer(partial(torch.optim.AdamW, no_such_option=True)))
    rows = ["adamw", "adamw-foreach", "apollo-single", "apollo-foreach", "apollo"]
    check_results(run_command(COMMAND, tmp_path)["apollo"], rows, cases=1)
    assert "adamw-fused is left out" in capsys.readouterr().out


def test_wrong_step_is_refused(monkeypatch, capsys):
    wrong = Optimizer(partial(Apollo, foreach=True, beta=0.8), equals="apollo-single")
    monkeypatch.setitem(OPTIMIZERS, "apollo-foreach", wrong)
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("was timed"))
    check_refused(COMMAND, ["apollo-foreach is not timed", "differs from apollo-single's"], capsys)
