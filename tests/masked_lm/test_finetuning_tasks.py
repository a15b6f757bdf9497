"""Published files of the fine-tuning tasks: read, or refused with a message that names file and line."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairseq.criterions.sentence_prediction import SentencePredictionConfig, SentencePredictionCriterion
from fairseq.data import Dictionary
from fairseq.logging import metrics
from luna_fairseq.engine.correlations import CORRELATIONS
from luna_fairseq.engine.patch import NOT_NEEDED
from luna_fairseq.errors import InputError
from luna_fairseq.files.same_run import parse_options
from luna_fairseq.masked_lm.finetuning import TASKS
from luna_fairseq.masked_lm.finetuning.evaluation import _to_label
from luna_fairseq.masked_lm.finetuning.metrics import compute_metrics
from luna_fairseq.masked_lm.finetuning.preparation import TaskPreparation
from luna_fairseq.masked_lm.finetuning.prepared import PreparedWriter
from luna_fairseq.masked_lm.finetuning.runs import find_best
from luna_fairseq.masked_lm.finetuning.settings import (
    accumulation_options,
    choose_settings,
    enumerate_settings,
    leave_out_replaced,
    number_of_updates,
    task_options,
)
from luna_fairseq.masked_lm.finetuning.task import Example
from luna_fairseq.masked_lm.prepare_task import TaskOptions
from luna_fairseq.text.encoders import words_encoder

# task -> (file of a split, split, its lines, inputs of the last example, its label)
MNLI = "index promptID pairID genre s1b s2b s1p s2p sentence1 sentence2 label1 gold_label".split()
GLUE = {
    "SST-2": ("train.tsv", "train", ["sentence\tlabel", 'a "b c\t1'], ('a "b c',), "1"),
    "QNLI": ("dev.tsv", "valid", ["index\tquestion\tsentence\tlabel", "0\tq ?\ts .\tnot_entailment"],
             ("q ?", "s ."), "not_entailment"),
    "QQP": ("train.tsv", "train", ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "1\t2\t3\ta\tb\t0"],
            ("a", "b"), "0"),
    "MNLI": ("dev_mismatched.tsv", "valid1",
             ["\t".join(MNLI), "\t".join(["0"] * 8 + ["a", "b", "neutral", "neutral"])],
             ("a", "b"), "neutral"),
    "RTE": ("dev.tsv", "valid", ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\tentailment"],
            ("a", "b"), "entailment"),
    "MRPC": ("train.tsv", "train", ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t2\t3\ta\tb"],
             ("a", "b"), "1"),
    "CoLA": ("train.tsv", "train", ["gj04\t1\t\tA .", "gj04\t0\t*\tB ."], ("B .",), "0"),
    "STS-B": ("test.tsv", "test", ["index\tsentence1\tsentence2", "0\ta\tb"], ("a", "b"), None),
}  # fmt: skip


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.mark.parametrize("name", GLUE)
def test_glue(name, tmp_path):
    file, split, lines, inputs, label = GLUE[name]
    write(tmp_path / file, lines)
    example = TASKS[name].read(tmp_path, split)[-1]
    assert (example.inputs, example.label) == (inputs, label)


def test_no_example_is_lost_without_a_first_line_of_names(tmp_path):
    write(tmp_path / "train.tsv", ["a film\t1", "no film\t0"])
    found = [(example.inputs[0], example.label) for example in TASKS["SST-2"].read(tmp_path, "train")]
    assert found == [("a film", "1"), ("no film", "0")]


def test_text_without_a_first_line_of_names():
    folder = Path(__file__).resolve().parents[3] / "shared" / "data" / "sst2"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    train, valid = (TASKS["SST-2"].read(folder, split) for split in ("train", "valid"))
    assert (len(train), len(valid)) == (6920, 872)
    assert train[0].inputs[0].startswith("a stirring , funny") and train[0].label == "1"


@pytest.mark.parametrize(
    "name, lines, message",
    [
        ("SST-2", ["sentence\tlabel", "a\t1", "b\t2"], "line 3.*SST-2.*'2'"),
        ("SST-2", ["a\t1", "b"], "train.tsv, line 2.*sentence, label.*got 1"),
        ("RTE", ["a\tb\tentailment"], "train.tsv, line 1.*'sentence1'"),
        (
            "STS-B",
            ["sentence1\tsentence2\tscore", "a\tb\t5.5"],
            "line 2.*'5.5'",
        ),
        ("SST-2", ["sentence\tlabel", "\t1"], "line 2.*got 1"),
        ("RTE", ["sentence1\tsentence2\tlabel", "a\t\tentailment"], "line 2.*sentence2"),
        ("SST-2", ["sentence\tlabel"], "train.tsv"),
        ("SST-2", [], "train.tsv"),
        ("QNLI", None, "train.tsv"),
    ],
)
def test_malformed_glue(name, lines, message, tmp_path):
    if lines is not None:
        write(tmp_path / "train.tsv", lines)
    with pytest.raises(InputError, match=message):
        TASKS[name].read(tmp_path, "train")


def test_broken_lines_of_qqp_are_left_out(tmp_path, capsys):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    write(tmp_path / "train.tsv", [header, "1\t2\t3\ta\tb\t0", "4\t5", "1\t2\t3\tc\td\t1"])
    assert [example.label for example in TASKS["QQP"].read(tmp_path, "train")] == ["0", "1"]
    assert "line 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, header", [("QQP", "id\tquestion1\tquestion2"), ("RTE", "id\tsentence1\tsentence2")]
)
def test_an_empty_last_text_of_a_test_set_is_an_example(name, header, tmp_path):
    write(tmp_path / "test.tsv", [header, "0\tx\ty", "1\thow\t", "2\t\tz"])
    texts = [example.inputs for example in TASKS[name].read(tmp_path, "test")]
    assert texts == [("x", "y"), ("how", ""), ("", "z")]


def test_a_broken_line_of_a_test_set_is_refused(tmp_path):
    write(tmp_path / "test.tsv", ["id\tquestion1\tquestion2", "0\tx\ty", "1"])
    with pytest.raises(InputError, match="line 3"):
        TASKS["QQP"].read(tmp_path, "test")


def test_a_run_whose_metric_is_no_number_is_not_the_best():
    assert find_best({"a": float("nan"), "b": 3.0, "c": 90.0, "d": 90.0}) == "c"
    assert find_best({"a": float("nan")}) == "a"


PASSAGE = {
    "article": "One .\nTwo\t.",
    "questions": ["It is _ .", "Why ?"],
    "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"]],
    "answers": ["B", "D"],
    "id": "high1.txt",
}


def test_race(tmp_path):
    write(tmp_path / "test" / "high" / "1.txt", [json.dumps(PASSAGE)])
    first, second = TASKS["RACE"].read(tmp_path, "test1")
    assert first.inputs == ("One . Two .", "It is a .", "It is b .", "It is c .", "It is d .")
    assert second.inputs[1:] == ("Why ? e", "Why ? f", "Why ? g", "Why ? h")
    assert (first.label, second.label) == ("B", "D")


def question(answer="C", number=5):
    choices = [{"label": "ABCDE"[n], "text": f"t{n}"} for n in range(number)]
    entry = {"answerKey": answer, "id": "x", "question": {"stem": "Where ?", "choices": choices}}
    return {name: value for name, value in entry.items() if value is not None}


def test_commonsense_qa(tmp_path):
    write(tmp_path / "train_rand_split.jsonl", [json.dumps(question())])
    write(tmp_path / "test_rand_split_no_answers.jsonl", [json.dumps(question(None))])
    (example,) = TASKS["CommonsenseQA"].read(tmp_path, "train")
    assert example.inputs == ("Q: Where ?", "A: t0", "A: t1", "A: t2", "A: t3", "A: t4")
    assert example.label == "C"
    assert TASKS["CommonsenseQA"].read(tmp_path, "test")[0].label is None
    write(tmp_path / "test_rand_split_no_answers.jsonl", [json.dumps(question(""))])
    assert TASKS["CommonsenseQA"].read(tmp_path, "test")[0].label is None


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("RACE", {"answers": ["B"]}, "1.txt"),
        (
            "RACE",
            {"answers": ["B", "E"]},
            "1.txt, question 2.*'E'",
        ),
        ("RACE", {"options": [["a"], ["b"]]}, "1.txt, question 1.*4.*got 1"),
        ("RACE", {"questions": None}, "1.txt"),
        ("CommonsenseQA", "{", "train_rand_split.jsonl, line 2"),
        ("CommonsenseQA", "{}", "line 2"),
        ("CommonsenseQA", question(number=4), "got A, B, C, D"),
        ("CommonsenseQA", question("F"), "line 2.*got 'F'"),
        ("CommonsenseQA", question(""), "line 2.*got ''"),
        ("CommonsenseQA", question(None), "line 2.*got ''"),
    ],
)
def test_malformed_multiple_choice(name, change, message, tmp_path):
    if name == "RACE":
        write(tmp_path / "train" / "middle" / "1.txt", [json.dumps({**PASSAGE, **change})])
    else:
        line = change if isinstance(change, str) else json.dumps(change)
        write(tmp_path / "train_rand_split.jsonl", [json.dumps(question()), line])
    with pytest.raises(InputError, match=message):
        TASKS[name].read(tmp_path, "train")


def test_metrics():
    assert compute_metrics(TASKS["QQP"], ["1", "1", "0", "0"], ["1", "0", "0", "0"]) == pytest.approx(
        {"accuracy": 75.0, "f1": 100 * 2 / 3}
    )
    assert compute_metrics(TASKS["CoLA"], ["1", "0", "1"], ["1", "0", "1"]) == {"matthews": 100.0}
    scores = compute_metrics(TASKS["STS-B"], [1.0, 2.0, 9.0], [1.0, 2.0, 3.0])
    assert scores["spearman"] == pytest.approx(100.0) and scores["pearson"] < 95
    assert scores["pearson_spearman"] == pytest.approx((scores["pearson"] + scores["spearman"]) / 2)
    assert all(map(math.isnan, compute_metrics(TASKS["STS-B"], [1.0], [2.0]).values()))


@pytest.mark.parametrize(
    "predicted, expected, correlation",
    [([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], 100.0), ([1.0, 1.0], [2.0, 4.0], -100.0), ([1.0], [2.0], -100.0)],
)
def test_fairseq_selects_no_epoch_without_a_correlation(predicted, expected, correlation):
    if CORRELATIONS.state == NOT_NEEDED:
        pytest.skip("this fairseq computes no correlations")
    log = {"loss": 1.0, "ntokens": 9, "nsentences": 3, "sample_size": 3, "report_pearson_and_spearman": True}
    with metrics.aggregate(new_root=True) as found:
        SentencePredictionCriterion.reduce_metrics([{**log, "pred": predicted, "targ": expected}])
        names = ("pearson", "spearman", "pearson_and_spearman")
        assert [found.get_smoothed_value(name) for name in names] == [correlation] * 3


def test_options_of_table_9():
    # GLUE: 6% of the updates; SST-2 of GLUE has 67,349 examples, of which the authors' command makes 21,050
    # updates.
    updates = number_of_updates(67349, 32, 10)
    assert updates == 21050
    words = " ".join(choose_settings(TASKS["SST-2"], "search").options(updates))
    assert "--weight-decay 0.1 --attention-dropout 0.1 --activation-dropout 0.0" in words
    assert "--lr-scheduler polynomial_decay --warmup-updates 1263 --total-num-update 21050" in words
    words = " ".join(choose_settings(TASKS["RACE"], "table-9").options(1000))
    assert "--weight-decay 0.01" in words and words.endswith("--lr-scheduler fixed --warmup-updates 150")
    words = " ".join(choose_settings(TASKS["CommonsenseQA"], "table-9").options(1000))
    assert "--attention-dropout 0.0 --activation-dropout 0.1" in words


def test_learning_rates_keep_all_digits():
    rates = (1.2345678e-5, 1.2345679e-5, 1e-5)
    runs = enumerate_settings(replace(choose_settings(TASKS["RTE"], "table-9"), learning_rates=rates))
    assert list(runs) == ["batch32-lr1.2345678e-05", "batch32-lr1.2345679e-05", "batch32-lr1e-05"]


@pytest.mark.parametrize(
    "given, missing",
    [
        ("--weight-decay 0.01", ()),
        ("--lr-scheduler inverse_sqrt", ("--total-num-update",)),
        ("--lr-scheduler=tri_stage --bf16", ("--total-num-update", "--warmup-updates")),
        ("--optimizer sgd", ("--adam-betas", "--adam-eps")),
        ("--optimizer none", ()),
    ],
)
def test_settings_of_a_replaced_component_are_left_out(given, missing):
    settings = choose_settings(TASKS["RTE"], "table-9").options(100)
    expected = parse_options(settings)
    for name in missing:
        del expected[name]
    assert parse_options(leave_out_replaced(settings, given.split())) == expected


@pytest.mark.parametrize(
    "task, sweep, tried",
    [  # batch sizes, rates, dropouts: section 4.3, and Table 9
        ("QNLI", "search", ((16, 32), (5e-6, 1e-5, 2e-5), (0.1,))),
        ("QNLI", "table-9", ((32,), (1e-5,), (0.1,))),
        ("RACE", "search", ((64,), (1e-5, 2e-5, 3e-5), (0.0, 0.1, 0.2))),
        ("RACE", "table-9", ((64,), (1e-5,), (0.1,))),
        ("CommonsenseQA", "search", ((64,), (1e-5, 2e-5, 3e-5), (0.0, 0.1, 0.2))),
        ("CommonsenseQA", "table-9", ((64,), (1e-5,), (0.2,))),
    ],
)
def test_what_is_tried(task, sweep, tried):
    settings = choose_settings(TASKS[task], sweep)
    assert (settings.batch_sizes, settings.learning_rates, settings.dropouts) == tried
    assert len(enumerate_settings(settings)) == math.prod(map(len, tried))


def test_accumulation():
    assert accumulation_options(64, 16) == ["--batch-size", "16", "--update-freq", "4"]
    assert accumulation_options(16, 32) == ["--batch-size", "16", "--update-freq", "1"]
    with pytest.raises(InputError, match="--at-a-time 12 .*16"):
        accumulation_options(16, 12)


@pytest.mark.parametrize(
    "task, pieces, longest",
    [
        ("SST-2", [[5, 9]], [7, 11]),  # <s> text </s>
        ("RTE", [[5, 9], [3, 1]], [12, 14]),  # <s> text </s> </s> text </s>
        ("CommonsenseQA", [[5, 9], [3, 1], [2, 4]], [11, 16]),  # <s> candidate </s> question </s>
        ("RACE", [[50, 90], [3, 1], [126, 127]], [180, 220]),  # <s> candidate </s> </s> passage </s>
        ("RACE", [[50, 90], [3, 125], [125, 300]], [179, 220]),  # candidates have at most 128 tokens
    ],
)
def test_lengths_of_model_inputs(task, pieces, longest, tmp_path):
    writer = PreparedWriter(tmp_path, TASKS[task], Dictionary())
    assert writer._lengths(np.array(pieces)).tolist() == longest


def test_only_folders_of_a_task_are_replaced(tmp_path):
    for name in ("input0", "input5", "inputs", "input_notes", "input0.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    PreparedWriter(tmp_path, TASKS["SST-2"], Dictionary()).finish()
    kept = {path.parent.name for path in tmp_path.glob("*/mine")}
    assert kept == {"inputs", "input_notes", "input0.old"} and not (tmp_path / "input5").exists()


@pytest.mark.parametrize("name", ["input0", "input1", "label", "sentencepiece.bpe.model"])
def test_files_of_others_are_not_replaced(name, tmp_path):
    preparation = TaskPreparation.__new__(TaskPreparation)
    preparation.options = TaskOptions("SST-2", tmp_path, tmp_path / "vocabulary", tmp_path / "out")
    preparation.tokenizer = [tmp_path / "vocabulary" / "sentencepiece.bpe.model"]
    (tmp_path / "out" / name).mkdir(parents=True)
    with pytest.raises(InputError, match=f"{name} already exists"):
        preparation.run()


def test_what_was_written_and_has_vanished_is_named(tmp_path):
    """``finish`` returns the name of a file that vanished, so that writing the checksums notices."""
    writer = PreparedWriter(tmp_path, TASKS["SST-2"], Dictionary())
    (writer.temporary / "input0" / "dict.txt").unlink()
    assert writer.finish() == ["task.json", "input0/dict.txt"]


TEXTS = "--task sentence_prediction --criterion sentence_prediction --classification-head-name head"
ANSWERS = "--task sentence_ranking --criterion sentence_ranking --ranking-head-name head"
ACCURACY = "--best-checkpoint-metric accuracy"
CORRELATION = "--report-pearson-and-spearman --best-checkpoint-metric pearson_and_spearman"


@pytest.mark.parametrize(
    "name, options",
    [
        ("SST-2", f"{TEXTS} --separator-token 2 --num-classes 2 {ACCURACY}"),
        ("RTE", f"{TEXTS} --separator-token 2 --num-classes 2 {ACCURACY}"),
        ("MNLI", f"{TEXTS} --separator-token 2 --num-classes 3 {ACCURACY}"),
        ("CoLA", f"{TEXTS} --separator-token 2 --num-classes 2 --report-mcc --best-checkpoint-metric mcc"),
        ("STS-B", f"{TEXTS} --separator-token 2 --num-classes 1 --regression-target {CORRELATION}"),
        ("RACE", f"{ANSWERS} --separator-token 2 --num-classes 4 --max-option-length 128 {ACCURACY}"),
        ("CommonsenseQA", f"{ANSWERS} --num-classes 5 {ACCURACY}"),
    ],
)
def test_options_of_a_task(name, options):
    if "--report" in options and not hasattr(SentencePredictionConfig(), "report_mcc"):
        pytest.skip("this fairseq does not compute the metric")
    shared = "--init-token 0 --shorten-method truncate --maximize-best-checkpoint-metric"
    expected = parse_options(f"{options} {shared}".split())
    assert parse_options(task_options(TASKS[name], "head")) == expected


@pytest.mark.parametrize(
    "name, labels, written",
    [("STS-B", [2.5, 5.0], "0.5\n1.0\n"), ("CommonsenseQA", ["C", "A"], "2\n0\n")],
)
def test_labels_are_written_for_fairseq_and_converted_back(name, labels, written, tmp_path):
    task = TASKS[name]
    writer = PreparedWriter(tmp_path, task, Dictionary())
    examples = [Example(("w",) * task.inputs, str(label)) for label in labels]
    writer.write("train", examples, words_encoder())
    writer.finish()
    found = (tmp_path / "label" / "train.label").read_text(encoding="utf-8")
    assert found == written
    assert [_to_label(task, float(value)) for value in found.split()] == labels
