"""Fine-tune a tiny masked language model: a killed sweep, multiple choice, and export to transformers."""

import importlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import plugin, succeed
from copying import PRETRAIN, sentences
from forked import run_module

from fairseq.criterions.sentence_prediction import SentencePredictionConfig
from luna_fairseq.engine.correlations import CORRELATIONS
from luna_fairseq.engine.patch import NOT_NEEDED
from luna_fairseq.files.same_run import parse_options
from luna_fairseq.masked_lm.finetune import _OWN, FineTuningOptions
from luna_fairseq.masked_lm.finetuning import runs
from luna_fairseq.masked_lm.finetuning.prepared import PreparedTask
from luna_fairseq.masked_lm.finetuning.runs import FineTuning
from luna_fairseq.models import LunaMaskedLM

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
PATIENCE = 3


def started(program, *words, **environment):
    line = [sys.executable, "-m", f"luna_fairseq.masked_lm.{program}", *map(str, words)]
    # The process leads a group, so that it can be killed with its children.
    return subprocess.Popen(
        line,
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=os.setpgrp,
    )


def luna(program, *words):
    done = run_module(f"luna_fairseq.masked_lm.{program}", [Path(str(word)) for word in words])
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout + done.stderr


def in_this_process(program, *words):
    """Run a command within this process, which is faster than :func:`luna`, and return its exit status."""
    status = importlib.import_module(f"luna_fairseq.masked_lm.{program}").main([str(word) for word in words])
    logging.disable(logging.NOTSET)
    return status


@pytest.fixture
def refuses(capsys):
    """Function that runs a command, checks that it fails, and returns the last line on stderr."""

    def line(program, *words):
        capsys.readouterr()
        assert in_this_process(program, *words) == 1
        (printed,) = capsys.readouterr().err.strip().splitlines()[-1:]
        return printed

    return line


@pytest.fixture(scope="module")
def pretrained(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    succeed("train", *plugin(text), PRETRAIN, "--max-update 2 --no-epoch-checkpoints", "--save-dir", folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def sst2(text, tmp_path_factory):
    """Folder of a prepared SST-2 task with tiny sentences, whose labels are their lengths modulo 2."""
    folder = tmp_path_factory.mktemp("sst2")
    for seed, (name, number) in enumerate((("train", 40), ("dev", 12))):
        lines = (f"{' '.join(words)}\t{len(words) % 2}\n" for words in sentences(number, seed))
        (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    words = ["SST-2", folder, "--vocabulary", text, "--destdir", folder / "bin", "--workers", 1]
    assert in_this_process("prepare_task", *words) == 0
    return folder / "bin"


def test_prepared(sst2):
    prepared = PreparedTask.load(sst2)
    assert prepared.examples == {"train": 40, "valid": 12} and prepared.labelled == ["train", "valid"]
    assert prepared.longest["train"] == 10  # eight words, <s> and </s>
    assert (sst2 / "label" / "dict.txt").read_text(encoding="utf-8") == "0 1\n1 1\n"
    _, *written, _ = json.loads((sst2 / "prepare_task.json").read_text("utf-8"))["prepare"]["files"]
    assert (
        written == sorted(written) and len(written) > 8
    )  # not in the order in which the system lists the folder


@pytest.mark.slow
def test_a_killed_sweep_goes_on(sst2, pretrained, tmp_path, refuses):
    """A sweep that is killed in its second run keeps the first run and resumes the second.

    The second run ends at the same epoch with the same weights as a run that was not killed.
    """

    def command(name, *batch_sizes):
        words = ["SST-2", sst2, "--pretrained", pretrained, "--out", tmp_path / name, "--lrs", "1e-9"]
        words += ["--patience", PATIENCE, "--batch-sizes", *batch_sizes, "--head", "mean_classification_head"]
        return [*words, "--at-a-time", 8, "--", "--num-workers", "0"]

    process = started("finetune", *command("killed", 8, 16))
    log = tmp_path / "killed" / "batch16-lr1e-09" / "train.log"
    give_up = time.time() + 300
    while not (log.is_file() and "end of epoch 2 " in log.read_text(encoding="utf-8")):
        assert process.poll() is None and time.time() < give_up, process.stdout.read()[-3000:]
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = (tmp_path / "killed" / "batch8-lr1e-09" / "train.log").stat().st_size

    output = luna("finetune", *command("killed", 8, 16))
    luna("finetune", *command("whole", 16))
    assert (tmp_path / "killed" / "batch8-lr1e-09" / "train.log").stat().st_size == before
    runs = [tmp_path / name / "batch16-lr1e-09" / "checkpoint_last.pt" for name in ("killed", "whole")]
    killed, whole = (torch.load(str(path), weights_only=False) for path in runs)
    # This learning rate changes no prediction, so the first epoch remains the best. The checkpoint stores
    # the number of the next epoch.
    assert whole["extra_state"]["train_iterator"]["epoch"] == 1 + PATIENCE + 1
    assert killed["extra_state"]["train_iterator"] == whole["extra_state"]["train_iterator"]
    assert all(torch.equal(value, whole["model"][name]) for name, value in killed["model"].items())
    table = re.findall(r"^(batch\d+-lr1e-09) +([\d.]+)$", output, flags=re.MULTILINE)
    assert [name for name, _ in table] == ["batch8-lr1e-09", "batch16-lr1e-09"]
    best = re.search(r"^best: (\S+), accuracy ([\d.]+): (\S+)$", output, flags=re.MULTILINE)
    assert best[2] == max((value for _, value in table), key=float) and Path(best[3]).is_file()

    line = refuses("finetune", *command("killed", 8, 16), "--attention-dropout", "0.3")
    assert "--attention-dropout 0.1 before, --attention-dropout 0.3 now" in line
    predictions = tmp_path / "predictions"
    words = [sst2, "--path", best[3], "--predictions", predictions]
    assert f"SST-2 valid, 12 examples:  accuracy {best[2]}" in luna("evaluate_task", *words)
    check_predictions(best[3], sst2, predictions.read_text(encoding="utf-8").split())


def check_predictions(checkpoint, data, predicted):
    """Compare the predictions of the command with those of the Python interface."""
    path = Path(checkpoint)
    hub = LunaMaskedLM.from_pretrained(str(path.parent), path.name, str(data))
    with torch.no_grad():
        rows = [
            hub.predict("mean_classification_head", hub.encode(" ".join(words))) for words in sentences(12, 1)
        ]
    assert [str(int(row.argmax())) for row in rows] == predicted


def test_commonsense_qa(forked_commands, text, pretrained, tmp_path, capsys):
    """Multiple choice with fairseq's task ``sentence_ranking``. The test set has no answers."""
    splits = {"train_rand_split": 16, "dev_rand_split": 8, "test_rand_split_no_answers": 4}
    for seed, (name, number) in enumerate(splits.items()):
        lines = []
        for count, words in enumerate(sentences(number, seed)):
            choices = [{"label": label, "text": f"w{n}"} for n, label in enumerate("ABCDE")]
            entry = {"question": {"stem": " ".join(words), "choices": choices}}
            entry.update({} if "no_answers" in name else {"answerKey": "ABCDE"[count % 5]})
            lines.append(json.dumps(entry) + "\n")
        (tmp_path / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    data = tmp_path / "bin"
    words = ["CommonsenseQA", tmp_path, "--vocabulary", text, "--destdir", data, "--workers", 1]
    assert in_this_process("prepare_task", *words, "--max-unknown", 10) == 0
    words = ["CommonsenseQA", data, "--pretrained", pretrained, "--out", tmp_path / "out", "--epochs", 1]
    capsys.readouterr()
    assert in_this_process("finetune", *words, "--at-a-time", 8) == 0
    output = capsys.readouterr().out
    assert re.search(r"^best: batch64-lr1e-05, accuracy [\d.]+:", output, flags=re.MULTILINE)
    checkpoint = tmp_path / "out" / "batch64-lr1e-05" / "checkpoint_best.pt"
    words = [data, "--path", checkpoint, "--split", "test", "--predictions", tmp_path / "predictions"]
    assert in_this_process("evaluate_task", *words) == 0
    assert "4 examples:  no answers to compare with" in capsys.readouterr().out
    assert set((tmp_path / "predictions").read_text(encoding="utf-8").split()) <= set("ABCDE")
    state = torch.load(str(checkpoint), weights_only=False)
    longest = PreparedTask.load(data).longest["test"]
    for positions, cut in ((longest, ""), (5, " (4 were truncated to the model's 5 positions)")):
        state["cfg"]["task"].max_positions = positions
        torch.save(state, str(tmp_path / "other.pt"))
        words = [data, "--path", tmp_path / "other.pt", "--split", "test"]
        assert in_this_process("evaluate_task", *words) == 0
        assert f"4 examples{cut}:" in capsys.readouterr().out


def test_sts_b_with_one_example_at_a_time(forked_commands, text, pretrained, tmp_path, capsys):
    if CORRELATIONS.state == NOT_NEEDED:
        pytest.skip("this fairseq computes no correlations")
    for seed, (name, number) in enumerate((("train", 4), ("dev", 3))):
        lines = [f"{' '.join(words)}\tw1\t{len(words) % 6}\n" for words in sentences(number, seed)]
        (tmp_path / f"{name}.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(lines), "utf-8")
    words = ["STS-B", tmp_path, "--vocabulary", text, "--destdir", tmp_path / "bin", "--workers", 1]
    assert in_this_process("prepare_task", *words) == 0
    words = ["STS-B", tmp_path / "bin", "--pretrained", pretrained, "--out", tmp_path / "out"]
    words += ["--sweep", "table-9", "--at-a-time", 1, "--epochs", 1]
    assert in_this_process("finetune", *words) == 0
    assert "best: batch32-lr1e-05, pearson_spearman " in capsys.readouterr().out


def test_a_diverging_run_does_not_end_the_sweep(forked_commands, sst2, pretrained, tmp_path, capsys):
    words = ["SST-2", sst2, "--pretrained", pretrained, "--out", tmp_path / "out", "--epochs", 2]
    words += ["--batch-sizes", 32, "--lrs"]
    for attempt in range(2):
        assert in_this_process("finetune", *words, "1e30", "1e-5") == 0
        said = capsys.readouterr().out
        assert re.search(r"^batch32-lr1e\+30 +diverged$", said, flags=re.MULTILINE)
        assert "best: batch32-lr1e-05, accuracy" in said
        assert ("batch32-lr1e+30 diverged" in said) == (attempt == 0)  # it is not trained again
    assert in_this_process("finetune", *words, "1e30") == 1
    assert "all 1 runs diverged" in capsys.readouterr().err


def test_options_that_the_command_sets(sst2, pretrained, tmp_path, refuses):
    """The names of the runs and the table would tell values that were not used."""
    words = ["SST-2", sst2, "--pretrained", pretrained, "--out", tmp_path / "out"]
    own = "--task --criterion --arch --seed --patience --max-epoch --lr --dropout --batch-size".split()
    own += "--update-freq --max-sentences --classification-head-name --valid-subset --num-classes".split()
    for name in own:
        assert name in refuses("finetune", *words, "--", name, "1"), name
    assert "--activation-fn" in refuses("finetune", *words, "--", "--activation-fn", "tanh")
    assert not (tmp_path / "out").exists()
    sweep = FineTuning(FineTuningOptions("SST-2", sst2, pretrained, tmp_path / "out"))
    given = parse_options(sweep._train_options(tmp_path, next(iter(sweep.runs.values())))[1:])
    free = parse_options([*sweep.settings.options(10), *sweep.pretrained.options]).keys() - {"--arch"}
    harmless = {"--no-epoch-checkpoints", "--log-format", "--log-interval"}
    sweep.options.train = ["--lr-scheduler", "fixed"]
    replaced = parse_options(sweep._train_options(tmp_path, next(iter(sweep.runs.values())))[1:])
    assert given.keys() - replaced.keys() == {"--total-num-update"}
    assert given.keys() - free - harmless - {"--shorten-method", "--find-unused-parameters"} <= set(_OWN)


def test_refused(sst2, pretrained, text, tmp_path, refuses):
    words = [sst2, "--pretrained", pretrained, "--out", tmp_path / "out"]
    assert f"got SST-2 in {sst2}" in refuses("finetune", "RTE", *words)
    line = refuses("evaluate_task", sst2, "--path", pretrained)
    assert "masked_lm" in line and "SST-2" in line
    state = torch.load(str(pretrained), weights_only=False)
    state["cfg"]["model"].update(arch="peer_roberta", _name="peer_roberta")
    torch.save(state, str(tmp_path / "peer.pt"))
    words = [sst2, "--pretrained", tmp_path / "peer.pt", "--out", tmp_path / "out"]
    line = refuses("finetune", "SST-2", *words, "--head", "mean_classification_head")
    assert "--head mean_classification_head reads the packed sequence P" in line
    (tmp_path / "train.tsv").write_text("w1 w2\t1\nw3\tgood\n", encoding="utf-8")
    (tmp_path / "dev.tsv").write_text("w1 w2\t1\n", encoding="utf-8")
    words = ["SST-2", tmp_path, "--destdir", tmp_path / "bin", "--workers", 1]
    line = refuses("prepare_task", *words, "--vocabulary", text)
    assert f"{tmp_path / 'train.tsv'}, line 2" in line
    (tmp_path / "train.tsv").write_text("w1 w2\t1\n", encoding="utf-8")
    (tmp_path / "dict.txt").write_text("w1 1\nw2 1\n", encoding="utf-8")
    assert in_this_process("prepare_task", *words, "--vocabulary", tmp_path) == 0
    words = [tmp_path / "bin", "--pretrained", pretrained, "--out", tmp_path / "out"]
    line = refuses("finetune", "SST-2", *words)
    assert "25 entries" in line
    assert "7 entries" in line


def test_export(pretrained, text, tmp_path):
    """The export command works on the checkpoint of a run. tests/huggingface tests the details."""
    transformers = pytest.importorskip("transformers")
    words = [str(tmp_path / "hf"), "--path", str(pretrained), "--data", str(text)]
    export = importlib.import_module("luna_fairseq.huggingface.export")
    assert export.main(words) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "hf"), trust_remote_code=True)
    hub = LunaMaskedLM.from_pretrained(str(pretrained.parent), pretrained.name, str(text))
    assert tokenizer("w1 w2 w3").input_ids == hub.encode("w1 w2 w3").tolist()
    assert "| updates | 2 |" in (tmp_path / "hf" / "README.md").read_text(encoding="utf-8")
    assert export.main(words) == 1


def test_the_best_run_is_evaluated_on_other_labelled_splits(sst2, pretrained, tmp_path, monkeypatch, capsys):
    """MNLI has a second validation set, and the test sets of RACE have labels."""
    words = {"batch_sizes": [8, 16], "lrs": [1e-5], "at_a_time": 4}
    sweep = FineTuning(FineTuningOptions("SST-2", sst2, pretrained, tmp_path, **words))
    sweep.data = replace(sweep.data, labelled=["train", "valid", "valid1", "test"])
    setting = next(iter(sweep.runs.values()))
    assert parse_options(sweep._train_options(tmp_path, setting))["--valid-subset"] == "valid,valid1"
    trained = {"batch8-lr1e-05": {"accuracy": 50.0}, "batch16-lr1e-05": {"accuracy": 75.0}}
    monkeypatch.setattr(sweep, "_train_and_evaluate", lambda name, setting: trained[name])
    evaluated = []

    def evaluate(data, checkpoint, split, batch_size):
        evaluated.append((data, checkpoint, split, batch_size))
        return {"accuracy": 10.0 * len(evaluated)}, [], ""

    monkeypatch.setattr(runs, "evaluate", evaluate)
    sweep.run()
    best = tmp_path / "batch16-lr1e-05" / "checkpoint_best.pt"
    assert evaluated == [(sweep.data, best, split, 4) for split in ("valid1", "test")]
    assert capsys.readouterr().out.splitlines()[-3:] == [
        f"best: batch16-lr1e-05, accuracy 75.00: {best}",
        "  valid1: accuracy 10.00",
        "  test: accuracy 20.00",
    ]


@pytest.mark.parametrize("name, metric", [("CoLA", "matthews"), ("STS-B", "pearson_spearman")])
def test_fairseq_and_the_table_agree_on_a_correlation(
    forked_commands, text, pretrained, tmp_path, capsys, name, metric
):
    """The metric by which fairseq-train selects the best epoch is the first metric of the table."""
    if not hasattr(SentencePredictionConfig(), "report_mcc"):
        pytest.skip("this fairseq does not compute the metric")
    for seed, (file, number) in enumerate((("train", 24), ("dev", 8))):
        lines = [] if name == "CoLA" else ["sentence1\tsentence2\tscore"]
        for count, words in enumerate(map(" ".join, sentences(number, seed))):
            lines.append(f"x\t{count % 2}\t\t{words}" if name == "CoLA" else f"{words}\tw1\t{count % 6}")
        (tmp_path / f"{file}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = tmp_path / "bin"
    words = [name, tmp_path, "--vocabulary", text, "--destdir", data, "--workers", 1]
    assert in_this_process("prepare_task", *words) == 0
    words = [name, data, "--pretrained", pretrained, "--out", tmp_path / "out", "--epochs", 2]
    capsys.readouterr()
    assert in_this_process("finetune", *words, "--batch-sizes", 8, "--lrs", "0.01") == 0
    best = re.search(rf"^best: \S+, {metric} (-?[\d.]+): (\S+)$", capsys.readouterr().out, flags=re.MULTILINE)
    state = torch.load(best[2], weights_only=False)
    assert state["extra_state"]["best"] == pytest.approx(float(best[1]), abs=0.06)  # fairseq rounds to 0.1
