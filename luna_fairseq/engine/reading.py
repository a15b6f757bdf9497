"""Data that is read: whole, named, and not nothing."""

from pathlib import Path
from typing import Any

import torch

from luna_fairseq.checks.same_training import identity_of, is_known
from luna_fairseq.engine.mend import RIGHT, Function, Mend
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import check_files
from luna_fairseq.text.pieces import check_encoded, check_sentencepiece

CHECKED_DATA = Mend(
    "checked-data",
    RIGHT,
    "tokens of a damaged file are trained on: what luna-prepare-* made has checksums (checksums.sha256)",
)

SOMETHING_TO_READ = Mend(
    "something-to-read",
    RIGHT,
    "fairseq-eval-lm says perplexity 1.00 of no token; others end in a traceback",
)

NAMED_VALIDATION = Mend(
    "named-validation",
    RIGHT,
    "--valid-subset valid,valid1 is compared with names of files (valid1.en-de.en), and refused",
)

PLAIN_TEXT = Mend(
    "plain-text",
    RIGHT,
    "fairseq-interactive without --bpe, or with another dictionary's, translates plain text as unknown words "
    "where the dictionary holds pieces",
)


@CHECKED_DATA.around("fairseq.data.indexed_dataset:make_dataset")
def _as_it_was_prepared(make_dataset: Function, path: str, *args: Any, **kwargs: Any) -> Any:
    _check(path)
    return make_dataset(path, *args, **kwargs)


@CHECKED_DATA.around("fairseq.data.dictionary:Dictionary.add_from_file")
def _with_its_dictionary(add_from_file: Function, self: Any, f: Any) -> Any:
    if isinstance(f, str):
        _check(f)
    return add_from_file(self, f)


def _check(path: str) -> None:
    """In one process of a run: when it ends, all do."""
    from fairseq.distributed.utils import get_global_rank

    if get_global_rank() == 0:
        check_files(Path(path))


@NAMED_VALIDATION.around("fairseq.data.data_utils:_find_extra_valid_paths")
def _splits_of_files(find_extra_valid_paths: Function, *args: Any, **kwargs: Any) -> Any:
    return {name.split(".")[0] for name in find_extra_valid_paths(*args, **kwargs)}


@SOMETHING_TO_READ.around("fairseq.data.data_utils:load_indexed_dataset")
def _of_some_sequence(load_indexed_dataset: Function, path: str, *args: Any, **kwargs: Any) -> Any:
    content = Path(f"{path}.bin")
    if content.is_file() and not content.stat().st_size:
        raise InputError(f"{content} is empty: there is nothing to read")
    return load_indexed_dataset(path, *args, **kwargs)


@SOMETHING_TO_READ.around("fairseq.tasks.fairseq_task:FairseqTask.filter_indices_by_size")
def _with_a_sequence_left(
    filter_indices: Function, self: Any, indices: Any, dataset: Any, *args: Any, **kwargs: Any
) -> Any:
    left = filter_indices(self, indices, dataset, *args, **kwargs)
    # A dataset that is around a split (a language model's context window), or what somebody types.
    inner = getattr(dataset, "dataset", None)
    split = next((name for name, one in self.datasets.items() if one is dataset or one is inner), None)
    if split is not None and not len(left):
        if not len(dataset):
            raise InputError(f"the split {split} is empty: there is nothing to read")
        longest = kwargs.get("max_positions", args[0] if args else None)
        raise InputError(
            f"nothing of the split {split} is left: all of its {len(dataset):,} sequences are longer "
            f"than the {longest} tokens that model and task allow: give larger --max-source-positions and "
            "--max-target-positions in training (to fairseq-eval-lm: --sample-break-mode and "
            "--tokens-per-sample as in training)"
        )
    return left


@SOMETHING_TO_READ.around("fairseq.data.iterators:ShardedIterator.__init__")
def _with_a_batch(
    init: Function, self: Any, iterable: Any, num_shards: int, shard_id: int, *args: Any, **kwargs: Any
) -> None:
    # Processes that train together do without: fairseq gives them an empty one.
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    if alone and num_shards > 1 and shard_id >= len(iterable):
        raise InputError(
            f"--num-shards {num_shards} --shard-id {shard_id}: nothing is left for it, as there are "
            f"{len(iterable)} batches: give fewer shards, or a smaller --max-tokens or --batch-size"
        )
    init(self, iterable, num_shards, shard_id, *args, **kwargs)


@PLAIN_TEXT.around("fairseq_cli.interactive:make_batches")
def _encoded(make_batches: Function, lines: Any, cfg: Any, task: Any, *args: Any) -> Any:
    encoding = getattr(cfg.bpe, "_name", cfg.bpe)
    if encoding is None and task.source_dictionary is not None:
        for line in lines:
            check_encoded(line.split("\t")[0], task.source_dictionary)
    if encoding == "sentencepiece" and is_known(identity_of(task)):
        check_sentencepiece(cfg.bpe.sentencepiece_model, task)
    return make_batches(lines, cfg, task, *args)
