"""The tasks of Long Range Arena: how they read data, and which data they refuse."""

import json
import math
import re
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq.data import Dictionary, indexed_dataset
from fairseq.logging import metrics
from fairseq.logging.progress_bar import JsonProgressBar, SimpleProgressBar
from luna_fairseq.errors import InputError
from luna_fairseq.files.same_run import parse_options
from luna_fairseq.lra import figure, seeds
from luna_fairseq.lra.criterion import LRACrossEntropyCriterion
from luna_fairseq.lra.figure import read_curve
from luna_fairseq.lra.results import Result, check_comparable
from luna_fairseq.lra.task import LRAConfig, LRAImageConfig, LRAImageTask, LRATextTask
from luna_fairseq.lra.writing import write_images, write_tokens

SYMBOLS = ["a", "b", "c"]
TINY = {
    "encoder_embed_dim": 8,
    "encoder_ffn_embed_dim": 8,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "classifier_out_dim": 4,
    "sentence_class_num": 3,
}


def write_text(folder, pairs=False, labels=(0, 2, 1, 1)):
    """Write four examples of 1 to 4 symbols to each split."""
    examples = [
        (split, [[0] * (1 + n), [1] * (4 - n)][: 1 + pairs], label)
        for split in ("train", "valid", "test")
        for n, label in enumerate(labels)
    ]
    write_tokens(folder, SYMBOLS, 3, examples, pairs)
    return folder


def read(task_class, cfg, split, options):
    task = task_class.setup_task(cfg)
    model = task.build_model(Namespace(_name="lra", **{**TINY, **options}))
    task.load_dataset(split)
    return task, model


def text_task(folder, split="train", **options):
    return read(LRATextTask, LRAConfig(data=str(folder), no_shuffle=True, seed=1), split, options)


def image_task(folder, normalization=None, **options):
    cfg = LRAImageConfig(data=str(folder), no_shuffle=True, seed=1, pixel_normalization=normalization)
    return read(LRAImageTask, cfg, "train", options)


def collate(task):
    dataset = task.dataset("train")
    return dataset.collater([dataset[i] for i in range(len(dataset))])


@pytest.mark.parametrize(
    "options, first", [({}, True), ({"sen_rep_type": "mp"}, False), ({"use_p": True}, False)]
)
def test_cls_is_prepended_if_the_model_reads_it(tmp_path, options, first):
    task, model = text_task(write_text(tmp_path), **options)
    sample = collate(task)
    cls = task.source_dictionary.index("<CLS>")
    tokens = sample["net_input"]["src_tokens"]
    assert tokens.eq(cls).sum() == 4 * first and (tokens[:, 0] == cls).all() == first
    assert sample["net_input"]["src_lengths"].tolist() == [n + 1 + first for n in (1, 2, 3, 4)]
    assert sample["target"].view(-1).tolist() == [0, 2, 1, 1]
    assert sample["ntokens"] == 10 + 4 + 4 * first and sample["nsentences"] == 4
    assert model(**sample["net_input"]).shape == (4, 3)


def test_pairs(tmp_path):
    task, model = text_task(write_text(tmp_path, pairs=True))
    sample = collate(task)
    assert task.pairs and model.pairs
    assert sample["net_input"]["src1_lengths"].tolist() == [6, 5, 4, 3]
    assert sample["ntokens"] == 36
    assert [task.dataset("train").size(i) for i in range(4)] == [6, 5, 5, 6]
    assert model(**sample["net_input"]).shape == (4, 3)


def test_long_text_is_cut_off(tmp_path):
    task, _ = text_task(write_text(tmp_path), max_positions=4)
    assert collate(task)["net_input"]["src_lengths"].tolist() == [3, 4, 4, 4]


def write_pixels(folder):
    pixels = np.arange(27, dtype=np.uint8).reshape(-1, 3, 3)
    splits = ("train", "valid", "test")
    write_images(folder, 3, [(split, *row) for split in splits for row in zip(pixels, (0, 1, 2))])
    return folder, pixels.reshape(-1, 9)


@pytest.mark.parametrize("normalization", [None, [0.25, 2.0]])
@pytest.mark.parametrize("as_text", [False, True])
def test_images(tmp_path, normalization, as_text):
    folder, pixels = write_pixels(tmp_path)
    if as_text:
        lines = "".join(" ".join(map(str, row)) + "\n" for row in pixels)
        (folder / "input" / "train.src").write_text(lines)
        (folder / "input" / "train.npy").unlink()
    task, model = image_task(folder, normalization=normalization)
    sample = collate(task)
    mean, std = normalization or (0.5, 0.5)
    expected = (torch.from_numpy(pixels.astype(np.float32)) / 255 - mean) / std
    assert torch.allclose(sample["net_input"]["src_tokens"], expected)
    assert sample["target"].tolist() == [0, 1, 2] and sample["ntokens"] == 27
    assert model(**sample["net_input"]).shape == (3, 3)


@pytest.mark.parametrize("options", [{}, {"sen_rep_type": "mp"}, {"max_positions": 7}])
def test_the_text_task_reads_pixels_as_tokens(tmp_path, options):
    """The batch equals that of the same intensities, written as words."""
    folder, pixels = write_pixels(tmp_path / "images")
    splits = ("train", "valid", "test")
    examples = [(split, [row], label) for split in splits for row, label in zip(pixels, (0, 1, 2))]
    write_tokens(tmp_path / "words", [*map(str, range(256))], 3, examples)
    (task, model), (words, _) = (text_task(tmp_path / name, **options) for name in ("images", "words"))
    sample, expected = collate(task), collate(words)
    assert task.source_dictionary == words.source_dictionary
    for name, value in expected["net_input"].items():
        assert torch.equal(sample["net_input"][name], value)
    assert sample["target"].tolist() == [0, 1, 2] and sample["ntokens"] == expected["ntokens"]
    assert model(**sample["net_input"]).shape == (3, 3)


def test_criterion(tmp_path):
    task, model = text_task(write_text(tmp_path))
    sample, totals = collate(task), {}
    for sentence_avg in (False, True):
        criterion = LRACrossEntropyCriterion(task, sentence_avg)
        loss, size, log = criterion(model.eval(), sample)
        totals[sentence_avg] = (loss.item(), size)
        logits = model(**sample["net_input"])
        expected = -logits.log_softmax(-1)[range(4), [0, 2, 1, 1]].sum().item()
        assert loss.item() == pytest.approx(expected, rel=1e-5)
        assert log["ncorrect"] == logits.argmax(-1).eq(torch.tensor([0, 2, 1, 1])).sum()
    assert totals[False][1] == sample["ntokens"] and totals[True][1] == 4


def refused(message, call, *args, **options):
    with pytest.raises(InputError, match=re.escape(message)):
        call(*args, **options)


def test_refused_text(tmp_path):
    refused("src-bin/dict.txt does not exist", text_task, tmp_path)
    write_text(tmp_path)
    refused("src-bin/other.bin and", text_task, tmp_path, "other")
    message = "label-bin/train, line 2: label '2', expected one of the 2 classes"
    refused(message, text_task, tmp_path, sentence_class_num=2)


def test_missing_half_of_a_pair(tmp_path):
    write_text(tmp_path / "four", pairs=True)
    write_text(tmp_path / "three", pairs=True, labels=(0, 1, 2))
    for end in ("bin", "idx"):
        source = tmp_path / "three" / "src1-bin" / f"train.{end}"
        source.replace(tmp_path / "four" / "src1-bin" / f"train.{end}")
    refused("every example needs one entry in each of these files", text_task, tmp_path / "four")
    (tmp_path / "four" / "src1-bin" / "train.idx").unlink()
    refused("src1-bin/train.bin and", text_task, tmp_path / "four")


def test_label_of_two_words(tmp_path):
    write_text(tmp_path)
    labels = Dictionary.load(str(tmp_path / "label-bin" / "dict.txt"))
    builder = indexed_dataset.make_builder(str(tmp_path / "label-bin" / "train.bin"), "mmap", len(labels))
    for _ in range(4):
        builder.add_item(torch.IntTensor([4, 5, 2]))
    builder.finalize(str(tmp_path / "label-bin" / "train.idx"))
    refused("label-bin/train, line 1: label '0 1', expected one of the 3 classes", text_task, tmp_path)


def test_refused_images(tmp_path):
    refused("train.npy", image_task, tmp_path)
    folder, _ = write_pixels(tmp_path)
    message = "9 pixels, but the model reads at most 7"
    refused(message, image_task, folder, max_positions=8)
    refused("--pixel-normalization 0.5", image_task, folder, normalization=[0.5])
    label = folder / "label" / "train.label"
    label.write_text("0\n1\n3\n")
    refused("train.label, line 3: label '3'", image_task, folder)
    label.write_text("0\n1\n")
    refused("3 images, but 2 labels", image_task, folder)
    binary, text = folder / "input" / "train.npy", folder / "input" / "train.src"
    binary.unlink()
    text.write_text("1 2 3\n1 2\n")
    refused("train.src, line 2", image_task, folder)
    text.write_text("1 2 256\n")
    refused("train.src, line 1", image_task, folder)
    np.save(str(binary), np.zeros((2, 3)))
    refused("float64 of shape (2, 3)", image_task, folder)


@pytest.mark.parametrize("most, said", [(3, "2 of 4 sequences are cut to the model's 3 tokens"), (5, None)])
def test_cut_sequences_are_counted(most, said, tmp_path, caplog):
    text_task(write_text(tmp_path), max_positions=most, use_p=True)
    lines = [record.getMessage() for record in caplog.records if "are cut" in record.getMessage()]
    assert [said is not None and said in line for line in lines] == [True] * (said is not None)


@pytest.mark.parametrize(
    "options, data, refused",
    [
        (["--max-update", "3"], "a", True),
        (["--max-update", "2", "--lr", "1"], "a", True),
        (["--max-update", "2"], "b", True),
        (["--max-update", "2", "--cpu", "--num-workers", "0"], "a", False),
    ],
)
def test_seeds_of_other_runs_are_not_averaged(options, data, refused):
    first = Result("ListOps", "luna-16", 1, 60.0, ["--max-update", "2"], "a")
    results = {Path("out/seed-1/result.json"): first, Path("out/seed-2/result.json"): replace(first, seed=2)}
    results[Path("out/seed-3/result.json")] = replace(first, seed=3, options=options, data=data)
    results[Path("out/other")] = replace(first, model="luna-32", options=["--lr", "5"])
    if refused:
        with pytest.raises(InputError, match="seed-3 and out/seed-1"):
            check_comparable(results)
    else:
        check_comparable(results)


@pytest.mark.parametrize("kind", [SimpleProgressBar, JsonProgressBar])
def test_curves_are_read_from_logs_of_both_formats(kind, tmp_path, caplog):
    caplog.set_level("INFO")
    stats = {"loss": "2.5", "accuracy": "12.5", "wps": "9", "num_updates": 4, "best_accuracy": "50"}
    kind([], epoch=3, prefix="valid on 'valid' subset").print(stats, tag="valid", step=4)
    (tmp_path / "train.log").write_text(caplog.text)
    assert read_curve(tmp_path / "train.log") == {4: 12.5}


@pytest.mark.parametrize(
    "option", ["--arch", "-a", "--seed", "--encoder-projection-length", "--use-p", "--task"]
)
def test_options_that_luna_lra_seeds_sets(option, tmp_path, capsys):
    words = ["listops", str(tmp_path), "--out", str(tmp_path), "--", option, "1"]
    assert seeds.main(words) == 1
    assert option in capsys.readouterr().err


def test_data_of_another_task_is_refused(tmp_path, capsys):
    (tmp_path / "prepare_lra.json").write_text(json.dumps({"text": {"key": "", "files": {}, "facts": {}}}))
    assert seeds.main(["listops", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "Text" in capsys.readouterr().err
    seeds.check_prepared_task(tmp_path, "imdb")


@pytest.mark.parametrize(
    "options, batch",
    [
        (["--batch-size", "32", "--batch-size", "4"], ["--batch-size", "4"]),
        (["--batch-size", "32", "--max-sentences", "4"], ["--batch-size", "4"]),
        (["--max-tokens", "2048"], ["--max-tokens", "2048"]),
    ],
)
def test_a_test_reads_the_best_checkpoint_in_batches_of_the_training(options, batch, tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(seeds, "train_logged", lambda *arguments: None)
    monkeypatch.setattr(seeds, "fairseq_command", lambda name, words: commands.append(words))

    def test(command, log, empty_log):
        log.write_text("| accuracy 40.0")

    monkeypatch.setattr(seeds, "run_logged", test)
    planned = Result("ListOps", "luna-16", 1, 0.0, ["--task", "lra-text", *options], "a")
    assert seeds.train_and_test(tmp_path, tmp_path, planned).accuracy == 40.0
    train, words = commands
    assert train[train.index("--seed") + 1] == "1"
    best = str(tmp_path / "checkpoint_best.pt")
    assert words[words.index("--path") : words.index("--task")] == ["--path", best, "--valid-subset", "test"]
    for words in commands:  # one GPU, as the recipes state
        assert parse_options(words)["--distributed-world-size"] == "1"
    assert words[words.index("--task") : words.index("--required-batch-size-multiple")] == [
        "--task",
        "lra-text",
        *batch,
    ]


def test_logged_loss_and_accuracy():
    """The loss is in bits per unit of the sample size, and the accuracy in percent of the sequences."""
    logs = [
        {"loss": 5 * math.log(2), "ncorrect": 1, "nsentences": 2, "sample_size": 4},
        {"loss": 3 * math.log(2), "ncorrect": 1, "nsentences": 6, "sample_size": 12},
    ]
    with metrics.aggregate() as logged:
        LRACrossEntropyCriterion.reduce_metrics(logs)
    assert logged.get_smoothed_values() == {"loss": 0.5, "accuracy": 25.0}


def test_order_of_the_examples(tmp_path):
    write_text(tmp_path, labels=[0] * 12)

    def order(no_shuffle, seed):
        cfg = LRAConfig(data=str(tmp_path), no_shuffle=no_shuffle, seed=seed)
        return read(LRATextTask, cfg, "train", {})[0].dataset("train").ordered_indices().tolist()

    assert order(True, 1) == sorted(order(False, 1)) == list(range(12))
    assert order(False, 1) == order(False, 1) != order(False, 2)
    assert order(False, 1) != order(True, 1)


def make_results(model, **accuracies):
    """Return results of a model on some tasks, given the accuracies of its seeds on each task."""
    return [
        Result(title, model, seed, accuracy, [])
        for title, values in accuracies.items()
        for seed, accuracy in enumerate(values, 1)
    ]


def test_accuracies_are_averaged_over_seeds_and_then_over_tasks():
    results = make_results("luna-16", Text=[60.0, 62.0], ListOps=[30.0], Image=[41.0])
    results += make_results("transformer", ListOps=[20.0, 24.0], Text=[50.0])
    assert seeds.format_table(results).splitlines() == [
        "| Model | ListOps | Text | Image | Avg. |",
        "| --- | --- | --- | --- | --- |",
        "| Transformer | 22.00 ± 2.83 (2) | 50.00 (1) | - | - |",
        "| Luna-16 | 30.00 (1) | 61.00 ± 1.41 (2) | 41.00 (1) | 44.00 |",
    ]
    expected = {"luna-16": 45.5, "transformer": 36.0}
    assert seeds.common_accuracies(results) == ("ListOps, Text", expected)
    results = make_results("luna-16", Text=[60.0]) + make_results("transformer", Image=[40.0])
    refused("no task in common", seeds.common_accuracies, results)


def test_figure_of_accuracy_speed_and_memory(tmp_path, monkeypatch):
    measured = (("transformer-softmax", 1.0, 8), ("luna-16", 1.5, 2))
    records = [
        {
            "case": {"T": 4000},
            "form": form,
            "speed_ratio": {"transformer-softmax": {"median": speed}},
            "extra_bytes": mebibytes * 2**20,
        }
        for form, speed, mebibytes in measured
    ]
    (tmp_path / "costs.json").write_text(json.dumps({"lra": {"results": records}}))
    drawn = []
    monkeypatch.setattr(figure, "save_png", lambda drawing, path: drawn.append(drawing))
    costs = figure.Costs(tmp_path / "costs.json")
    figure.write_figure(tmp_path / "figure.png", {"transformer": 36.0, "luna-16-p": 45.5}, costs, "ListOps")
    (axes,) = drawn[0].axes
    circles = {
        circle.get_label(): (*circle.get_offsets()[0].tolist(), circle.get_sizes()[0])
        for circle in axes.collections
    }
    assert circles == {"transformer, 8 MiB": (1.0, 36.0, 3000.0), "luna-16-p, 2 MiB": (1.5, 45.5, 750.0)}
    assert axes.get_title().startswith("ListOps; ") and "4,000 bytes" in axes.get_xlabel()
