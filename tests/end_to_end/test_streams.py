"""Streams of ``--task streaming_lm``: the text that each process reads, and the state in checkpoints."""

import pytest
import torch
from copying import ADAM
from saved_training import load
from test_two_processes import start

import luna_fairseq
from fairseq import options, tasks
from fairseq.data import ListDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from luna_fairseq.streaming.streams import StreamDataset

TASK = "--task streaming_lm -a luna_lm --segment-length 16 --decoder-layers 1 --decoder-attention-heads 2"
TASK += " --decoder-embed-dim 8 --decoder-ffn-embed-dim 8"


def iterator(text, words, rank=0, processes=1, split="train"):
    """Return the batch iterator of process ``rank``, which learns its rank after it has read the options."""
    luna_fairseq.register()
    line = f"{text} {TASK} {ADAM} {words} --distributed-world-size {processes}"
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


def test_processes_read_together_what_one_reads(text):
    one = batches(iterator(text, "--batch-size 4"))
    two = zip(*(batches(iterator(text, "--batch-size 2", rank, 2)) for rank in (0, 1)))
    for expected, parts in zip(one, two):
        assert torch.equal(torch.cat(list(map(shown, parts))), shown(expected))


@pytest.mark.slow
def test_two_processes_train_as_one_with_twice_the_batch_size(text, tmp_path):
    """Both runs are started by fairseq-train, and their weights are equal up to rounding."""
    words = f"{text} {TASK} {ADAM} --dropout 0 --attention-dropout 0 --max-update 4 --cpu"
    runs = {"one": "--batch-size 4", "two": "--batch-size 2 --distributed-world-size 2"}
    for name, batch_size in runs.items():
        last = f"--find-unused-parameters --disable-validation --save-dir {tmp_path / name}"
        with start(f"{words} {batch_size} {last}") as process:
            log = process.communicate(timeout=300)[0]
        assert process.returncode == 0, log[-3000:]
    one, two = (load(tmp_path / name / "checkpoint_last.pt")["model"] for name in runs)
    for key, expected in one.items():
        assert (two[key] - expected).abs().max() < 1e-5, key


def test_the_stream_of_the_first_of_several_processes_is_not_restored_in_the_others(text):
    sums = [torch.zeros(2, 1, 4, 3), None]  # key sum and value sum of one layer
    state = {"layers": [sums], "count": torch.full((2,), 16), "position": 16}
    for rank, processes in ((0, 1), (1, 2)):
        read, resumed = (iterator(text, "--batch-size 2", rank, processes) for _ in range(2))
        next(read.next_epoch_itr(shuffle=False))
        read.stream.load_state_dict(state)
        resumed.load_state_dict(read.state_dict())
        assert resumed.iterations_in_epoch == 1
        assert resumed.stream.position == (16 if processes == 1 else 0)


def test_the_training_split_may_have_another_name(text):
    words = "--batch-size 3 --batch-size-valid 2 --bptt-segments 1 --train-subset valid"
    assert shown(batches(iterator(text, words, split="valid"))[1]).shape == (3, 64)


@pytest.mark.parametrize("segment_length", [1, 3, 7, 64])
@pytest.mark.parametrize("streams", [1, 2, 3, 4, 7])
def test_evaluation_reads_every_token_once(streams, segment_length):
    """The streams of all processes together contain the text, and each token has the right predecessor."""
    lengths = [5, 1, 9, 2]
    text = ListDataset([torch.arange(n) + 10 * i + 4 for i, n in enumerate(lengths)], lengths)
    expected = torch.cat(list(text)).tolist()
    for processes in (1, 2):
        read = []
        for rank in range(processes):
            numbers = streams * processes, streams * rank
            made = StreamDataset(text, streams, segment_length, 1, 2, 0, *numbers, every_token=True)
            found = [made.collater([made[i]]) for i in range(len(made))]
            for batch in found:
                assert batch["ntokens"] == int(batch["target"].ne(1).sum())
                assert not batch["net_input"]["src_tokens"].eq(1).any()
            target = torch.cat([batch["target"] for batch in found], dim=1)
            before = torch.cat([batch["net_input"]["src_tokens"] for batch in found], dim=1)
            for stream, previous in zip(target, before):
                tokens = stream[stream.ne(1)].tolist()
                place = expected.index(tokens[0])
                assert previous[: len(tokens)].tolist() == [2, *expected][place : place + len(tokens)]
                read += tokens
        assert read == expected


@pytest.mark.parametrize("context_segments", [1, 2])
def test_context_is_read_but_not_predicted(context_segments):
    """Each token is a target once, and each item resumes from the state that the previous item saved."""
    parts = torch.arange(4, 21).split([5, 12])
    text = ListDataset(parts, [5, 12])
    made = StreamDataset(text, 2, 3, 1, 2, context_segments, 2, 0)  # two streams of 8 tokens, pad 1, eos 2
    tokens = torch.arange(4, 20).view(2, 8)
    before = torch.cat([torch.tensor([2]), torch.arange(4, 19)]).view(2, 8)
    place = 0  # where the previous item saved its state
    for index, end in enumerate((3, 6, 8)):
        item = made[index]
        batch, context = made.collater([item]), min(index, context_segments) * 3
        start = index * 3 - context
        assert place == start
        place += item["keep_after"]
        assert torch.equal(batch["net_input"]["src_tokens"], before[:, start:end])
        assert batch["target"][:, :context].eq(1).all() and batch["start_indices"] == [context] * 2
        assert torch.equal(batch["target"][:, context:], tokens[:, index * 3 : end])
        assert batch["ntokens"] == 2 * (end - index * 3)
        assert batch["net_input"]["keep_after"] == item["keep_after"]
