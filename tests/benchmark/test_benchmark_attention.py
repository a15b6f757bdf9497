"""The sub-command of pack and unpack attention at tiny sizes. No test looks at a clock."""

import pytest
from benchmark_checks import check_forms, check_refused, check_results, needs_sdpa, no_children, run_command  # noqa: F401

from luna_fairseq.benchmark import __main__ as command
from luna_fairseq.benchmark import fused_softmax, pack_and_unpack
from luna_fairseq.benchmark.heads import Shape
from luna_fairseq.benchmark.measure import Settings
from luna_fairseq.benchmark.options import DTYPES
from luna_fairseq.benchmark.peers import PACK_AND_UNPACK, Form

COMMAND = "attention --batch 2 --heads 2 --head-dim 4 --projection-length 3".split()
SETTINGS = Settings(repetitions=2, threads=1, device="cpu", seed=3)


@needs_sdpa
def test_attention(tmp_path, no_children):  # noqa: F811
    options = ["--lengths", "9", "30", "--max-naive-length", "20"]
    section = run_command([*COMMAND, *options], tmp_path)["attention"]
    long = [r for r in section["results"] if r["case"]["T"] == 30]
    short = [r for r in section["results"] if r["case"]["T"] == 9]
    check_results({**section, "results": short}, ["luna-naive", "luna", "softmax", "sdpa"], cases=4)
    check_results({**section, "results": long}, ["luna-naive", "luna", "sdpa"], cases=4)
    assert {r["case"]["padding"] for r in short} == {"none", "half"}


@needs_sdpa
def test_anchored_and_look_up(tmp_path, no_children):  # noqa: F811
    names = ["anchored-naive", "anchored", "look-up-naive", "look-up", "local-naive", "local"]
    options = [
        "--lengths",
        "30",
        "--max-naive-length",
        "20",
        "--without",
        "softmax",
        "luna-naive",
        "luna",
        "--with",
        *names,
    ]
    section = run_command([*COMMAND, *options], tmp_path)["attention"]
    check_results(section, ["anchored-naive", "anchored", "look-up", "local", "sdpa"], cases=4)


def wrong_look_up(inputs):
    return pack_and_unpack.look_up(inputs) * 1.001


@needs_sdpa
def test_wrong_look_up_is_refused(monkeypatch, capsys):
    monkeypatch.setitem(PACK_AND_UNPACK, "look-up", Form(wrong_look_up, equals="look-up-naive"))
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("was timed"))
    words = ["look-up is not timed", "output differs from look-up-naive"]
    check_refused([*COMMAND, "--lengths", "9"], words, capsys)


def test_half_of_the_sentences_are_half_padded():
    shape = Shape(4, 2, 4, 3, "float32", padded=True)
    mask = pack_and_unpack.make_inputs(shape, 9, SETTINGS)[0].key_padding_mask
    assert mask.sum(dim=1).tolist() == [0, 4, 0, 4] and mask[1, -1]
    assert pack_and_unpack.make_inputs(Shape(4, 2, 4, 3, "float32"), 9, SETTINGS)[0].key_padding_mask is None


def wrong_luna(inputs):
    return 1.001 * pack_and_unpack.pack_and_unpack(inputs)


def blind_to_padding(inputs):
    return pack_and_unpack.pack_and_unpack(inputs._replace(key_padding_mask=None))


@needs_sdpa
@pytest.mark.parametrize(
    "form, words",
    [(wrong_luna, "output differs from luna-naive"), (blind_to_padding, "at length 7 its output")],
)
def test_wrong_form_is_refused(form, words, monkeypatch, capsys):
    monkeypatch.setitem(PACK_AND_UNPACK, "luna", Form(form, equals="luna-naive"))
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("was timed"))
    check_refused([*COMMAND, "--lengths", "9"], ["luna is not timed", words], capsys)


@needs_sdpa
@pytest.mark.parametrize("limit", ["1024", "8"])
def test_wrong_peer_is_refused(limit, monkeypatch, capsys):
    monkeypatch.setattr(fused_softmax, "sdpa", lambda q, k, v, *_, **__: 2.0 * pack_and_unpack.naive(q, k, v))
    arguments = [*COMMAND, "--lengths", "9", "--max-naive-length", limit]
    check_refused(arguments, ["sdpa is not timed", "differs from softmax"], capsys)


@needs_sdpa
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_forms_are_within_the_tolerance_of_every_dtype(dtype):
    check_forms([*COMMAND, "--head-dim", "16", "--dtype", dtype], (1, 33, 130))
