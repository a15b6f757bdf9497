"""Which rows of a contiguous text a process reads, and what a checkpoint remembers of them."""

import pytest
import torch
from copying import ADAM, MODEL
from saved_training import load
from test_two_processes import start

import luna_fairseq
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

LM = "--decoder-layers 1 --decoder-embed-dim 8 --decoder-ffn-embed-dim 8 --decoder-attention-heads 2"
TASKS = {
    "streaming_lm": f"-a luna_lm {LM} --segment-length 16",
    "streaming_masked_lm": f"-a luna_bert --criterion masked_lm {MODEL} --carry-packed --segment-length 16",
}


def iterator(text, task, words, rank=0, processes=1, split="train"):
    """That of process ``rank``; as fairseq does, it learns which it is when the options have been read."""
    luna_fairseq.register()
    line = f"{text} --task {task} {TASKS[task]} {ADAM} {words} --distributed-world-size {processes}"
    cfg = convert_namespace_to_omegaconf(
        options.parse_args_and_arch(options.get_training_parser(), line.split())
    )
    with pytest.MonkeyPatch.context() as patch:
        if processes > 1:
            patch.setattr(torch.distributed, "is_initialized", lambda: True)
            patch.setattr(torch.distributed, "get_rank", lambda: rank)
            patch.setattr(torch.distributed, "get_world_size", lambda: processes)
        found = tasks.setup_task(cfg.task)
        found.build_model(cfg.model)
        found.load_dataset(split)
        return found.get_batch_iterator(found.dataset(split))


def batches(found):
    return list(found.next_epoch_itr(shuffle=False))


def shown(batch):
    return torch.cat([batch["net_input"]["src_tokens"], batch["target"]], dim=1)


@pytest.mark.parametrize("task", list(TASKS))
def test_processes_read_together_what_one_reads(task, text):
    """The same rows, masked at the same places."""
    one = batches(iterator(text, task, "--batch-size 4"))
    two = zip(*(batches(iterator(text, task, "--batch-size 2", rank, 2)) for rank in (0, 1)))
    for expected, parts in zip(one, two):
        assert torch.equal(torch.cat(list(map(shown, parts))), shown(expected))


@pytest.mark.slow
@pytest.mark.parametrize("task", list(TASKS))
def test_two_processes_train_as_one_with_twice_the_rows(task, text, tmp_path):
    """Started by fairseq-train, to rounding."""
    words = (
        f"{text} --task {task} {TASKS[task]} {ADAM} --dropout 0 --attention-dropout 0 --max-update 4 --cpu"
    )
    runs = {"one": "--batch-size 4", "two": "--batch-size 2 --distributed-world-size 2"}
    for name, rows in runs.items():
        last = f"--find-unused-parameters --disable-validation --save-dir {tmp_path / name}"
        with start(f"{words} {rows} {last}") as process:
            log = process.communicate(timeout=300)[0]
        assert process.returncode == 0, log[-3000:]
    one, two = (load(tmp_path / name / "checkpoint_last.pt")["model"] for name in runs)
    for key, expected in one.items():
        assert (two[key] - expected).abs().max() < 1e-5, key


@pytest.mark.parametrize(
    "task, state", zip(TASKS, ({"layers": [], "position": 16}, {"packed": torch.ones(1)}))
)
def test_what_the_first_of_several_processes_remembers_is_not_given_to_all(task, state, text):
    for rank, processes in ((0, 1), (1, 2)):
        read, resumed = (iterator(text, task, "--batch-size 2", rank, processes) for _ in range(2))
        next(read.next_epoch_itr(shuffle=False))
        read.stream.load_state_dict(state)
        resumed.load_state_dict(read.state_dict())
        assert resumed.iterations_in_epoch == 1
        assert (resumed.stream.state_dict() == state) == (processes == 1)


@pytest.mark.parametrize("task", list(TASKS))
def test_what_is_trained_on_may_have_another_name(task, text):
    words = "--batch-size 3 --batch-size-valid 2 --bptt-segments 1 --train-subset valid"
    found = iterator(text, task, words, split="valid")
    assert shown(batches(found)[1]).shape == (3, 64)


def test_validation_masks_the_same_whatever_was_read_before(text):
    """As fairseq-validate does."""
    words = "streaming_masked_lm", "--batch-size 2"
    found = iterator(text, *words, split="valid")
    in_training = list(found.next_epoch_itr(shuffle=False, set_dataset_epoch=False))
    for one, other in zip(in_training, batches(iterator(text, *words, split="valid"))):
        assert torch.equal(shown(one), shown(other))
