"""Several validation texts of pairs: those that --valid-subset names are named, others are pointed at."""

from types import SimpleNamespace

import pytest

import luna_fairseq.engine  # noqa: F401  mends fairseq
from fairseq.data import data_utils


def check(folder, subsets):
    dataset = SimpleNamespace(
        ignore_unused_valid_subsets=False,
        combine_valid_subsets=False,
        disable_validation=False,
        valid_subset=subsets,
    )
    cfg = SimpleNamespace(dataset=dataset, task=SimpleNamespace(data=str(folder)))
    data_utils.raise_if_valid_subsets_unintentionally_ignored(cfg)


def test_named_and_not_named(tmp_path):
    for split in ("valid", "valid1", "valid2"):
        for end in ("en.bin", "en.idx", "de.bin", "de.idx"):
            (tmp_path / f"{split}.en-de.{end}").touch()
    check(tmp_path, "valid,valid1,valid2")
    with pytest.raises(ValueError, match=r"Valid paths \['valid2'\] will be ignored"):
        check(tmp_path, "valid,valid1")
