"""Logs of fairseq-train are read in every format, complete or not."""

import io

import numpy as np
import pytest
from tqdm import tqdm
from training_logs import INNER, LOGS, figures, options_line

from luna_fairseq.errors import InputError
from luna_fairseq.report.logs import is_training_log, read_logs
from luna_fairseq.report.options import architecture, get_option


def read(tmp_path, *texts):
    paths = [tmp_path / f"{number}.log" for number in range(len(texts))]
    for path, text in zip(paths, texts):
        path.write_text(text, encoding="utf-8")
    return read_logs(paths)


def updates(log):
    return log.tables["train_inner"]["num_updates"].tolist()


def test_json_and_simple_agree():
    simple, json = (read_logs([LOGS / name]).tables for name in ("simple.log", "json.log"))
    assert set(simple) == set(json) == {"train_inner", "train", "valid", "saved"}
    for kind in simple:
        assert set(simple[kind]) == set(json[kind])
        for figure in set(simple[kind]) - {"wps", "ups", "wall", "train_wall"}:  # times differ
            np.testing.assert_allclose(simple[kind][figure], json[kind][figure], atol=1e-3)


def test_figures_of_a_tiny_run():
    log = read_logs([LOGS / "simple.log"])
    inner, valid = log.tables["train_inner"], log.tables["valid"]
    assert inner["num_updates"].tolist() == list(range(1, 13))
    assert inner["loss"][0] == 6.362 and inner["lr"][-1] == 0.00120988
    assert inner["epoch"][6] == 1 and inner["epoch"][0] == pytest.approx(1 / 7)
    assert valid["bleu"].tolist() == [0.11, 0.49] and np.isnan(valid["best_loss"][0])
    assert log.parameters == 31912 and log.finished and not log.is_truncated
    assert architecture(log.options) == "luna_base_tied"
    assert get_option(log.options, "pack_activation") == "softplus"


@pytest.mark.parametrize("name", ["simple.file", "json.file"])
def test_a_log_file_without_times_and_names(name):
    tables, same = read_logs([LOGS / name]).tables, read_logs([LOGS / name.replace("file", "log")]).tables
    for kind in ("train_inner", "train", "valid"):
        np.testing.assert_array_equal(tables[kind]["loss"], same[kind]["loss"])


def test_hydras_log():
    log = read_logs([LOGS / "hydra_train.log"])
    assert updates(log) == [1, 2, 3]
    assert log.tables["valid"]["ppl"].tolist() == [39.88]
    assert get_option(log.options, "untie_luna_kv") is True


def test_saved_checkpoints_without_statistics():
    tables = read_logs([LOGS / "none.log"]).tables
    assert set(tables) == {"saved"}
    assert tables["saved"]["num_updates"].tolist() == [7, 12]
    assert tables["saved"]["score"].tolist() == [5.883, 5.224]


def test_the_bars_of_a_terminal(tmp_path):
    screen = io.StringIO()
    bar = tqdm(range(15), "epoch 002", file=screen, mininterval=0, miniters=1)
    for step in bar:
        shown = {"loss": f"{9 - step}.5", "ppl": "21.1", "num_updates": str(step + 16)}
        bar.set_postfix(shown, refresh=False)
    inner = read(tmp_path, screen.getvalue() + "\n").tables["train_inner"]
    assert inner["num_updates"][-1] == 30 and inner["loss"][-1] == -5.5
    assert inner["epoch"][-1] == pytest.approx(1 + 14 / 15, abs=0.1)


def test_the_first_versions_of_fairseq(tmp_path):
    text = (
        "Namespace(arch='transformer', lr=[0.1], max_update=200, no_save=False)\n"
        "| num. model params: 12345 (num. trained: 12345)\n"
        "| epoch 001:    100 / 1000 loss=9.1, nll_loss=8.2, ppl=300.5, wps=900, ups=1, wpb=700.000, bsz=20, "
        "num_updates=100, lr=0.05, gnorm=1.5, clip=0.000, oom=0.000, wall=70, train_wall=60\n"
        "| epoch 001 | valid on 'valid' subset | loss 8.9 | nll_loss 8.0 | ppl 256.0 | num_updates 100\n"
    )
    log = read(tmp_path, text)
    assert log.tables["train_inner"]["ppl"].tolist() == [300.5]
    assert log.tables["valid"]["ppl"].tolist() == [256.0]
    assert architecture(log.options) == "transformer" and log.parameters == 12345


def test_a_log_cut_in_the_middle_of_a_line_lacks_that_line(tmp_path):
    text = (LOGS / "simple.log").read_text(encoding="utf-8")
    end = text.index("num_updates=9, lr=0.0009") + len("num_updates=9, lr=0.0009")
    log = read(tmp_path, text[:end])
    assert updates(log) == list(range(1, 9)) and log.is_truncated and not log.finished


def test_a_line_interrupted_by_another_process_is_skipped(tmp_path):
    lines = [INNER.format(**figures(update)) for update in (100, 200, 300)]
    broken = lines[1][:150] + "Warning: something else\n"
    assert updates(read(tmp_path, lines[0] + broken + lines[2])) == [100, 300]


def test_updates_repeated_after_a_restart_count_once(tmp_path):
    first = [INNER.format(**figures(update, speed=1)) for update in (100, 200, 300, 400)]
    again = [INNER.format(**figures(update, speed=2)) for update in (300, 400, 500)]
    together, apart = read(tmp_path, "".join(first + again)), read(tmp_path, "".join(first), "".join(again))
    for log in (together, apart):
        assert updates(log) == [100, 200, 300, 400, 500]
        assert log.tables["train_inner"]["wps"].tolist() == [30000, 30000, 60000, 60000, 60000]


def test_lines_that_change_back_to_earlier_columns_keep_their_order(tmp_path):
    """On a GPU, lines have gb_free. A run goes from a CPU to a GPU and back, and repeats update 400."""
    lines = [INNER.format(**figures(update)) for update in (100, 200, 300, 400, 400, 500)]
    for number in (0, 1, 4, 5):
        lines[number] = lines[number].replace("gb_free=20.5, ", "")
    log = read(tmp_path, "".join(lines))
    assert updates(log) == [100, 200, 300, 400, 500]
    assert np.isnan(log.tables["train_inner"]["gb_free"]).tolist() == [True, True, False, True, True]


def test_the_same_log_twice_is_one_run():
    once, twice = read_logs([LOGS / "json.log"]), read_logs([LOGS / "json.log", LOGS / "json.file"])
    assert updates(twice) == updates(once)


def test_values_that_are_not_numbers(tmp_path):
    lines = [INNER.format(**figures(update)) for update in (100, 200, 300)]
    gnorm = f"gnorm={figures(100)['gnorm']:.3f}"
    lines[1:1] = [lines[0].replace(gnorm, "gnorm=None").replace("=100,", "=150,")]
    lines[0] = lines[0].replace(gnorm, "gnorm=nan")
    found = read(tmp_path, "".join(lines[:3])).tables["train_inner"]
    assert np.isnan(found["gnorm"]).tolist() == [True, True, False] and np.isfinite(found["loss"]).all()


def test_other_files_are_refused(tmp_path):
    (tmp_path / "notes.log").write_text("epoch making news\nloss=5 of interest\n", encoding="utf-8")
    assert not is_training_log(tmp_path / "notes.log")
    with pytest.raises(InputError, match="notes.log"):
        read_logs([tmp_path / "notes.log"])
    with pytest.raises(InputError, match="absent.log"):
        read_logs([tmp_path / "absent.log"])


def test_bytes_that_are_not_utf8_are_skipped(tmp_path):
    path = tmp_path / "train.log"
    path.write_bytes(b"\x00\xff\xfe\n" + INNER.format(**figures(100)).encode() + b"\xc3\x28\n")
    assert updates(read_logs([path])) == [100]


def test_options_that_cannot_be_parsed(tmp_path):
    line = options_line().replace("'seed': 1", "'seed': <Seed.one>")
    assert read(tmp_path, line + INNER.format(**figures(100))).options is None


def test_options_of_a_translation_in_the_same_log_are_ignored(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(options_line(seed=7) + options_line(path="'checkpoint_best.pt'", seed=8), encoding="utf-8")
    assert get_option(read_logs([log]).options, "seed") == 7


def test_version_of_this_package(tmp_path):
    log = tmp_path / "train.log"
    line = "2026-01-02 03:04:05 | INFO | fairseq_cli.train | luna_fairseq 0.1.0"
    for suffix, version in (
        ("", "0.1.0"),
        (f" (commit {'0123456789' * 4})", "0.1.0, commit 012345678901"),
        (" <script>", None),
    ):
        log.write_text(f"{options_line()}{line}{suffix}\n", encoding="utf-8")
        assert read_logs([log]).version == version
