"""Training runs are found, named, and read with their options."""

import json
import os
import re
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from training_logs import LOGS, write_run

from luna_fairseq.errors import InputError
from luna_fairseq.report.options import differing_options, flatten_options
from luna_fairseq.report.runs import find_runs, summarize_run, training_hours


def copy_log(name, folder, as_name="train.log"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / as_name).write_bytes((LOGS / name).read_bytes())
    return folder


def save_checkpoint(path, options, **extra_state):
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"optimizer_history": [{"num_updates": 7}], "extra_state": extra_state}
    torch.save({**state, "model": {}, "cfg": options}, str(path))


def test_runs_are_named_after_their_folders(tmp_path):
    folders = [copy_log("simple.log", tmp_path / place) for place in ("a/one", "b/one", "two")]
    assert [run.name for run in find_runs(folders)] == ["a/one", "b/one", "two"]
    twice = [run.name for run in find_runs([folders[2], folders[2] / "train.log"])]
    assert twice == [f"{tmp_path.name}/two", f"{tmp_path.name}/two (2)"]
    (named,) = find_runs([Path(f"my run={folders[0]}")])
    assert named.name == "my run" and named.updates == 12


def test_all_runs_below_a_folder(tmp_path):
    for model in ("luna-16", "transformer"):
        for seed in (1, 2):
            folder = copy_log("json.log", tmp_path / "out" / "text" / model / f"seed-{seed}")
            result = {"title": "Text", "model": model, "seed": seed, "accuracy": 60.0 + seed, "options": []}
            (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
            (folder / "test.log").write_text("valid | accuracy 61\n", encoding="utf-8")
    runs = find_runs([tmp_path / "out"])
    assert [run.name for run in runs] == [
        f"out/text/{model}/seed-{seed}" for model in ("luna-16", "transformer") for seed in (1, 2)
    ]
    assert [run.result.accuracy for run in runs] == [61, 62, 61, 62]


def test_logs_of_several_runs_in_one_folder(tmp_path):
    copy_log("simple.log", tmp_path / "logs", "a.log")
    copy_log("json.log", tmp_path / "logs", "b.log")
    assert sorted(run.name for run in find_runs([tmp_path / "logs"])) == ["logs/a", "logs/b"]


def test_logs_may_have_any_ending(tmp_path):
    copy_log("simple.log", tmp_path / "logs", "train.luna")
    copy_log("json.log", tmp_path / "logs", "log.peer")
    (tmp_path / "logs" / "plot.py").write_text(
        "if 'train_inner' in line: print(num_updates)\n", encoding="utf-8"
    )
    assert sorted(run.name for run in find_runs([tmp_path / "logs"])) == ["logs/log.peer", "logs/train.luna"]
    paths = [tmp_path / "logs" / "train.luna", tmp_path / "logs" / "log.peer"]
    assert [run.name for run in find_runs(paths)] == ["train.luna", "log.peer"]


def test_options_are_read_from_hydras_folder(tmp_path):
    folder = tmp_path / "hydra"
    (folder / ".hydra").mkdir(parents=True)
    config = "common:\n  seed: 7\nmodel:\n  _name: luna\n"
    (folder / ".hydra" / "config.yaml").write_text(config, encoding="utf-8")
    lines = (LOGS / "hydra_train.log").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "hydra_train.log").write_text("".join(lines[1:]), encoding="utf-8")
    (run,) = find_runs([folder])
    assert summarize_run(run)["Seed"] == "7" and summarize_run(run)["Architecture"] == "luna"


def test_the_seed_may_be_0(tmp_path):
    (run,) = find_runs([write_run(tmp_path / "run", 1000, seed=0)])
    assert summarize_run(run)["Seed"] == "0"


def test_options_missing_in_the_log_are_read_from_a_checkpoint(tmp_path):
    folder = copy_log("json.file", tmp_path / "run")
    text = (folder / "train.log").read_text(encoding="utf-8")
    (folder / "train.log").write_text(
        "".join(line for line in text.splitlines(True) if "'common'" not in line), encoding="utf-8"
    )
    (without,) = find_runs([folder])
    assert "does not contain the options" in without.notes[0]
    options = {"common": {"seed": 3}, "model": Namespace(arch="luna")}
    save_checkpoint(folder / "checkpoints" / "checkpoint_last.pt", options)
    (run,) = find_runs([folder])
    assert (
        summarize_run(run)["Seed"] == "3" and summarize_run(run)["Architecture"] == "luna" and not run.notes
    )


def test_a_run_that_left_only_checkpoints(tmp_path):
    save_checkpoint(tmp_path / "run" / "checkpoint_best.pt", {"common": {"seed": 3}}, val_loss=5.5)
    (run,) = find_runs([tmp_path / "run"])
    assert run.updates == 7 and run.best() == ("loss", 5.5, 7) and "No log was found" in run.notes[0]
    save_checkpoint(tmp_path / "run" / "checkpoint_best.pt", {})  # with --disable-validation
    (run,) = find_runs([tmp_path / "run"])
    assert run.updates == 7 and run.best() is None


def test_runs_without_logs_beside_a_run_with_a_log(tmp_path, monkeypatch):
    """Checkpoints of the run with a log are not a second run, wherever they are."""
    monkeypatch.chdir(tmp_path)
    log = write_run(tmp_path / "all" / "logged", 1000) / "train.log"
    text = log.read_text(encoding="utf-8").replace(repr(str(log.parent)), "'all/saved'")
    log.write_text(text, encoding="utf-8")
    for place in ("saved", "logged/checkpoints", "one", "two/checkpoints"):
        save_checkpoint(tmp_path / "all" / place / "checkpoint_best.pt", {"common": {"seed": 3}})
    runs = find_runs([tmp_path / "all"])
    assert [(run.name, run.updates) for run in runs] == [
        ("all/logged", 1000),
        ("all/one", 7),
        ("all/two/checkpoints", 7),
    ]


def test_a_run_in_progress(tmp_path):
    folder = write_run(tmp_path / "run", updates=2000, finished=False)
    log = folder / "train.log"
    text = log.read_text(encoding="utf-8").replace("'max_update': 2000", "'max_update': 8000")
    log.write_text(text, encoding="utf-8")
    (run,) = find_runs([folder])
    assert summarize_run(run)["State"] == "25% of 8,000 updates"


def test_copied_logs_of_a_resumed_run_are_read_in_the_order_of_their_times(tmp_path):
    log = write_run(tmp_path / "run", 4000) / "train.log"
    options, *lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    log.unlink()
    for modified, (day, part) in enumerate([("03", lines[20:]), ("02", lines[:20])]):
        text = re.sub(r"(?m)^2026-\d\d-\d\d", f"2026-01-{day}", "".join([options, *part]))
        log.with_name(f"{day}.log").write_text(text, encoding="utf-8")
        os.utime(log.with_name(f"{day}.log"), (modified, modified))
    (run,) = find_runs([tmp_path / "run"])
    assert run.updates == 4000 and run.log.finished and [file.stem for file in run.files] == ["02", "03"]


@pytest.mark.parametrize(
    "updates, epochs, hours",
    [(3480, "3.5", "1.10"), (4000, "4.0", "1.10"), (4200, "4.2", "0.17")],
    ids=["stopped", "completed", "next epoch"],
)
def test_epochs_and_hours_include_the_updates_after_the_last_log_interval(updates, epochs, hours, tmp_path):
    """fairseq also writes a line at the end of an epoch of 1,000 updates, and of the training."""
    log = write_run(tmp_path / "run", updates, interval=300) / "train.log"
    line = f"epoch 004 | loss 5 | num_updates {min(updates, 4000)} | train_wall 14 | wall 3960\n"
    with log.open("a", encoding="utf-8") as file:
        file.write(f"2026-01-02 03:04:05 | INFO | train | {line}")
    cells = summarize_run(*find_runs([log.parent]))
    assert (cells["Epochs"], cells["Hours"]) == (epochs, hours)


def test_the_best_result_uses_the_metric_of_the_options(tmp_path):
    options = {"best_checkpoint_metric": "'bleu'", "maximize_best_checkpoint_metric": True}
    (run,) = find_runs([write_run(tmp_path / "run", 3000, **options)])
    name, value, update = run.best()
    bleu = run.log.tables["valid"]["bleu"]
    assert (name, value) == ("bleu", bleu.max()) and update in (1000, 2000, 3000)


def test_a_validation_with_nan_is_not_the_best(tmp_path):
    log = write_run(tmp_path / "run", 3000) / "train.log"
    text = log.read_text(encoding="utf-8").replace("subset | loss ", "subset | loss nan | was ", 1)
    log.write_text(text, encoding="utf-8")
    (run,) = find_runs([log])
    name, value, update = run.best()
    loss = run.log.tables["valid"]["loss"]
    assert np.isnan(loss).tolist() == [True, False, False] and value == min(loss[1:]) and update > 1000


@pytest.mark.parametrize(
    "make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("hello\n")]
)
def test_a_path_without_runs_is_refused_in_one_line(tmp_path, make):
    make(tmp_path / "place")
    with pytest.raises(InputError) as error:
        find_runs([tmp_path / "place"])
    assert "\n" not in str(error.value) and "place" in str(error.value)


def test_a_damaged_checkpoint_is_refused_in_one_line(tmp_path):
    (tmp_path / "checkpoint_last.pt").write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(InputError, match="checkpoint_last.pt") as error:
        find_runs([tmp_path])
    assert "\n" not in str(error.value)


def test_a_damaged_checkpoint_does_not_hide_other_runs(tmp_path, capsys):
    write_run(tmp_path / "good", 3000)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "checkpoint_last.pt").write_bytes(b"PK\x03\x04 and nothing more")
    (run,) = find_runs([tmp_path])
    assert run.updates == 3000
    assert "bad/checkpoint_last.pt" in capsys.readouterr().out


def test_a_damaged_checkpoint_beside_a_log_is_a_note(tmp_path):
    log = write_run(tmp_path / "run", 3000) / "train.log"
    log.write_text(log.read_text(encoding="utf-8").split("\n", 1)[1], encoding="utf-8")
    log.with_name("checkpoint_last.pt").write_bytes(b"PK\x03\x04 and nothing more")
    (run,) = find_runs([tmp_path])
    assert run.options is None and run.updates == 3000
    assert "checkpoint_last.pt cannot be read, because it is truncated" in run.notes[0]


def test_only_options_that_differ():
    rates = {"optimization": {"lr": [0.1]}, "lr_scheduler": {"lr": [0.1], "_name": "x"}}
    one = flatten_options({"common": {"seed": 1, "save_dir": "a"}, **rates})
    other = flatten_options(Namespace(seed=2, lr=[0.1], lr_scheduler="x", save_dir="b"))
    assert differing_options([one, other]) == [("--seed", ["1", "2"])]
    assert differing_options([one, None]) == []
    more = {**one, "model.depth": 3}
    assert differing_options([one, more, None]) == [("--depth", ["-", "3", "not known"])]


@pytest.mark.parametrize("wall", [[100, 200, 0, 0], [100, 200, 90, 190]])
def test_the_hours_continue_after_a_restart(wall):
    """After a restart, fairseq's clock stays at 0 or starts again."""
    table = {"wall": np.array(wall, dtype=float), "train_wall": np.array([90.0, 90, 90, 100])}
    assert training_hours(table)[-1] * 3600 == pytest.approx(390)
