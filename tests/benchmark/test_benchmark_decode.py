"""The decoding sub-command at tiny sizes. No test looks at a clock."""

import pytest
import torch
from benchmark_checks import check_refused, check_results, no_children, run_command  # noqa: F401

from luna_fairseq.benchmark import __main__ as command
from luna_fairseq.benchmark.decode import Decode
from luna_fairseq.benchmark.measure import Settings
from luna_fairseq.benchmark.models import TINY
from luna_fairseq.modules.luna_decoder import LunaDecoder

COMMAND = "decode --preset small --dictionary-size 40 --projection-length 3".split()
SETTINGS = Settings(repetitions=2, threads=1, device="cpu", seed=3)


def test_decode(tmp_path, no_children):  # noqa: F811
    section = run_command([*COMMAND, "--lengths", "4", "6", "--batch", "2", "--beam", "3"], tmp_path)[
        "decode"
    ]
    check_results(section, ["transformer", "luna-3-tied", "luna-3-untied", "luna-3-anchored"], cases=2)
    for result in section["results"]:
        assert result["sentences_per_second"] == pytest.approx(2 / result["seconds"]["median"])


def tiny_task(beam):
    options = ["--beam", str(beam), "--dictionary-size", "20", "--projection-length", "3"]
    task = Decode(command.build_parser().parse_args(["decode", *options]), SETTINGS)
    task.sizes = TINY
    return task


def job_of(task, row, case):
    return task.step(row, task.build(row, case), case)


@pytest.mark.parametrize("name", ["transformer", "luna-3-tied"])
def test_every_hypothesis_has_the_length_asked_for(name):
    task = tiny_task(beam=5)
    job = job_of(task, task.rows()[name], {"sentences": 3, "T": 11})
    generator, sample = job.args
    hypotheses = generator.generate([], sample)
    assert [[len(h["tokens"]) for h in of_sentence] for of_sentence in hypotheses] == [[11] * 5] * 3
    sample["net_input"]["src_tokens"] = sample["net_input"]["src_tokens"][:, 1:]
    with pytest.raises(ValueError, match="has 11 tokens instead of 10"):
        job()


def test_positions_suffice_beyond_their_default():
    task = tiny_task(beam=1)
    job_of(task, task.rows()["luna-3-tied"], {"sentences": 1, "T": 1030})()


def test_wrong_decoding_is_refused(monkeypatch, capsys):
    right = LunaDecoder.forward

    def wrong(self, *args, incremental_state=None, **kwargs):
        output, extra = right(self, *args, incremental_state=incremental_state, **kwargs)
        return (output if incremental_state is None else output + torch.ones_like(output)), extra

    monkeypatch.setattr(LunaDecoder, "forward", wrong)
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("was timed"))
    check_refused(COMMAND, ["luna-3-tied is not timed", "logits in decoding"], capsys)


def test_beam_beyond_the_dictionary_is_refused(capsys):
    check_refused([*COMMAND, "--beam", "40"], ["--beam 40 needs a larger --dictionary-size than 40"], capsys)
