"""Each epoch has masks of its own with any number of worker processes, and is shuffled after a curriculum."""

from types import SimpleNamespace

import torch

import luna_fairseq.engine  # noqa: F401  changes fairseq
from fairseq.data import Dictionary, FairseqDataset, MaskTokensDataset
from fairseq.tasks import FairseqTask


class Blocks(FairseqDataset):
    def __getitem__(self, index):
        return torch.arange(20) + index

    def __len__(self):
        return 12

    def num_tokens(self, index):
        return 20

    def collater(self, samples):
        return torch.stack(samples)


def make_iterator(dataset, **options):
    return FairseqTask(SimpleNamespace()).get_batch_iterator(dataset, max_sentences=1, **options)


def read_epoch(iterator, shuffle):
    return torch.cat(list(iterator.next_epoch_itr(shuffle)))


def read_masked_tokens(num_workers):
    """Return the masked tokens of three epochs [12, 20] each, with padding elsewhere."""
    words = Dictionary()
    for word in range(31):
        words.add_symbol(str(word))
    mask = words.add_symbol("<mask>")
    dataset = MaskTokensDataset(Blocks(), words, words.pad(), mask, return_masked_tokens=True)
    iterator = make_iterator(dataset, num_workers=num_workers)
    return [read_epoch(iterator, shuffle=False) for _ in range(3)]


def test_masks_differ_between_epochs_and_not_between_numbers_of_workers():
    alone, with_worker = read_masked_tokens(num_workers=0), read_masked_tokens(num_workers=1)
    assert not torch.equal(alone[0], alone[1])
    assert all(map(torch.equal, alone, with_worker))


def test_a_curriculum_ends_as_in_a_resumed_run():
    straight = make_iterator(Blocks())
    first, second, third = (read_epoch(straight, shuffle=epoch > 1) for epoch in (1, 2, 3))
    assert first[:, 0].tolist() == list(range(12))
    assert not torch.equal(first, second) and not torch.equal(second, third)
    assert torch.equal(second, read_epoch(make_iterator(Blocks(), epoch=2), shuffle=True))
