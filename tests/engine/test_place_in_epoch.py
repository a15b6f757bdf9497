"""A resumed epoch continues after the batches that were read, or starts again with a warning."""

import logging
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy
import pytest
import torch

import luna_fairseq.engine  # noqa: F401  changes fairseq
from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.configs import FairseqConfig
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer

BATCHES = [[number] for number in range(20)]


class Numbers(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return index


def make_iterators(processes, batches=BATCHES, **options):
    return [
        EpochBatchIterator(Numbers(), list, batches, num_shards=processes, shard_id=rank, **options)
        for rank in range(processes)
    ]


def read(iterators, steps=None):
    """Read an epoch in several processes.

    Args:
        iterators: batch iterator of each process.
        steps: number of steps to read (default: None, the whole epoch).

    Returns:
        What the processes have read, and the state of the first iterator.
    """
    found = []
    for iterator in iterators:
        epoch = iterator.next_epoch_itr()
        for _, batch in zip(range(1000 if steps is None else steps), epoch):
            found += batch
    return found, iterators[0].state_dict()


def resume(iterators, state):
    for iterator in iterators:
        iterator.load_state_dict(state)
    return iterators


@pytest.mark.parametrize(
    "before, after, steps, twice", [(2, 1, 5, 0), (1, 2, 8, 0), (1, 2, 7, 1), (4, 3, 4, 1)]
)
def test_resuming_with_another_number_of_processes(before, after, steps, twice, caplog):
    first, state = read(make_iterators(before), steps)
    with caplog.at_level(logging.WARNING):
        second, _ = read(resume(make_iterators(after), state))
    assert len(first) == before * steps and sorted({*first, *second}) == list(range(20))
    assert len(first) + len(second) == 20 + twice
    warnings = {record.getMessage() for record in caplog.records}
    assert (
        len(warnings) == 1 and f"{before * steps - twice} of the {before * steps} batches" in warnings.pop()
    )


def test_resuming_with_as_many_processes(caplog):
    first, state = read(make_iterators(2), 5)
    second, _ = read(resume(make_iterators(2), state))
    assert sorted([*first, *second]) == list(range(20)) and not caplog.records


@pytest.mark.parametrize(
    "change",
    [
        {"batches": [[2 * number, 2 * number + 1] for number in range(10)]},  # twice the --max-tokens
        {"batches": [[2 * number, 2 * number + 1] for number in range(5)]},
        {"batches": BATCHES[::-1]},
        {"processes": 4, "grouped_shuffling": True},
    ],
)
@pytest.mark.parametrize("lacking", [(), ("processes", "batches")], ids=["ours", "fairseq's"])
def test_an_epoch_with_other_batches_starts_again(change, lacking, caplog):
    _, state = read(make_iterators(2, grouped_shuffling="grouped_shuffling" in change), 9)
    state = {key: value for key, value in state.items() if key not in lacking}
    new = make_iterators(**{"processes": 2, **change})
    if lacking and state["iterations_in_epoch"] < len(new[0]):
        pytest.skip("fairseq's own state does not record the batches")
    with caplog.at_level(logging.WARNING):
        found, _ = read(resume(new, state))
    assert sorted(found) == sorted(sum(new[0].frozen_batches, []))
    assert {record.getMessage().split(", so ")[-1] for record in caplog.records} == {"epoch 1 is repeated"}


class ShuffledSentences(FairseqDataset):
    def __getitem__(self, index):
        return index

    def __len__(self):
        return 20

    def num_tokens(self, index):
        return 1

    def ordered_indices(self):
        return numpy.random.permutation(20)

    def collater(self, samples):
        return samples


class Shuffling(FairseqTask):
    def load_dataset(self, split, **kwargs):
        self.datasets[split] = ShuffledSentences()

    def max_positions(self):
        return None


@pytest.mark.parametrize("changing_seed", [False, True])
def test_a_resumed_epoch_has_the_batches_of_an_uninterrupted_run(changing_seed, caplog):
    def make_iterator(epoch):
        trainer = MagicMock(cfg=FairseqConfig(), task=Shuffling(SimpleNamespace()))
        trainer.model.max_positions.return_value = None
        dataset = trainer.cfg.dataset
        dataset.batch_size, dataset.num_workers, dataset.update_epoch_batch_itr = 2, 0, False
        dataset.grouped_shuffling, dataset.update_ordered_indices_seed = False, changing_seed
        trainer.data_parallel_world_size, trainer.data_parallel_rank = 1, 0
        return Trainer.get_train_iterator(trainer, epoch)

    straight = [make_iterator(1)]
    read(straight)
    _, state = read(straight, 5)
    expected = list(resume(straight, state)[0].next_epoch_itr())
    found = list(resume([make_iterator(2)], state)[0].next_epoch_itr())
    assert found == expected and len(found) == 5 and state["epoch"] == 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
