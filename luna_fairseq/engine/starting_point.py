"""What a run starts from and reads: it is there, and not nothing, before anything is trained."""

from pathlib import Path
from typing import Any, Callable

from luna_fairseq.engine.mend import Mend
from luna_fairseq.errors import InputError
from luna_fairseq.files.sole_writer import claim

STARTING_POINT = Mend(
    "starting-point",
    what="refuses a --restore-file or --finetune-from-model that does not exist, and a checkpoint_last.pt "
    "that is a folder",
    why="it trains from the beginning instead, and overwrites what --save-dir holds",
)

SOMETHING_TO_READ = Mend(
    "something-to-read",
    what="refuses to train, generate or evaluate when no sequence is left to do it on, and looks at the "
    "validation text before training",
    why="fairseq-eval-lm says perplexity 1.00 of no token, training ends in a traceback after an epoch",
)

NAMED_VALIDATION = Mend(
    "named-validation",
    what="takes validation texts that --valid-subset names (valid,valid1) for named",
    why="it compares the names with those of files (valid1.en-de.en), and refuses a folder of pairs that has "
    "several",
)


ONE_TRAINING = Mend(
    "one-training",
    what="refuses to train into a folder into which another process is training",
    why="two runs replace each other's checkpoints, and what is left is of neither",
)


@ONE_TRAINING.around("fairseq.checkpoint_utils:load_checkpoint")
def _alone(load_checkpoint: Callable[..., Any], cfg: Any, trainer: Any, **kwargs: Any) -> Any:
    if trainer.is_data_parallel_master and not cfg.no_save and Path(cfg.save_dir).is_dir():
        claim(Path(cfg.save_dir))
    return load_checkpoint(cfg, trainer, **kwargs)


@NAMED_VALIDATION.around("fairseq.data.data_utils:_find_extra_valid_paths")
def _splits_of_files(find_extra_valid_paths: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return {name.split(".")[0] for name in find_extra_valid_paths(*args, **kwargs)}


@STARTING_POINT.around("fairseq.checkpoint_utils:load_checkpoint")
def _from_what_is_there(load_checkpoint: Callable[..., Any], cfg: Any, trainer: Any, **kwargs: Any) -> Any:
    from fairseq.file_io import PathManager

    suffix = trainer.checkpoint_suffix or ""
    last = f"{cfg.save_dir}/checkpoint_last{suffix}.pt"
    if PathManager.exists(last) and not PathManager.isfile(last):
        raise InputError(f"{last} is a folder, where the checkpoint to go on from should be: remove it")
    given = {"--finetune-from-model": cfg.finetune_from_model}
    if cfg.restore_file != "checkpoint_last.pt":
        given["--restore-file"] = cfg.restore_file.replace(".pt", f"{suffix}.pt")
    for option, path in given.items():
        if path is None or PathManager.isfile(path):
            continue
        if option == "--finetune-from-model" and PathManager.isfile(last):
            continue  # the run goes on, and no longer needs it
        beside = f"{cfg.save_dir}/{path}"
        hint = f"; {beside} does: give that path" if PathManager.isfile(beside) else ""
        raise InputError(f"{option} {path} does not exist, or is no file{hint}")
    return load_checkpoint(cfg, trainer, **kwargs)


@SOMETHING_TO_READ.around("fairseq.tasks.fairseq_task:FairseqTask.get_batch_iterator")
def _with_a_batch(
    get_batch_iterator: Callable[..., Any], self: Any, dataset: Any, *args: Any, **kwargs: Any
) -> Any:
    iterator = get_batch_iterator(self, dataset, *args, **kwargs)
    # One that is around a split (a language model's context window), or what somebody types.
    inner = getattr(dataset, "dataset", None)
    split = next((name for name, one in self.datasets.items() if one is dataset or one is inner), None)
    if split is not None and not len(iterator.frozen_batches):
        raise InputError(_why_nothing_is_left(split, len(dataset), kwargs.get("max_positions")))
    return iterator


@SOMETHING_TO_READ.around("fairseq.data.data_utils:load_indexed_dataset")
def _of_some_sequence(load_indexed_dataset: Callable[..., Any], path: str, *args: Any, **kwargs: Any) -> Any:
    try:
        return load_indexed_dataset(path, *args, **kwargs)
    except ValueError as error:
        if "mmap an empty file" not in str(error):
            raise
        raise InputError(f"{path}.bin is empty: there is nothing to read") from None


@SOMETHING_TO_READ.around("fairseq.data.data_utils:batch_by_size")
def _batches_of_nothing(batch_by_size: Callable[..., Any], indices: Any, *args: Any, **kwargs: Any) -> Any:
    """None, where fairseq ends in an IndexError."""
    if hasattr(indices, "__len__") and not len(indices):
        return []
    return batch_by_size(indices, *args, **kwargs)


def _why_nothing_is_left(split: str, sequences: int, longest: Any) -> str:
    if not sequences:
        return f"the split {split} is empty: there is nothing to read"
    return (
        f"nothing of the split {split} is left: all of its {sequences:,} sequences are longer than the "
        f"{longest} tokens that model and task allow: give larger --max-source-positions and "
        "--max-target-positions in training (to fairseq-eval-lm: --sample-break-mode and --tokens-per-sample "
        "as in training)"
    )


@SOMETHING_TO_READ.around("fairseq.tasks.fairseq_task:FairseqTask.filter_indices_by_size")
def _too_long_in_one_line(filter_indices: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return filter_indices(self, *args, **kwargs)
    except Exception as error:
        if type(error) is not Exception:  # fairseq's class of what it explains
            raise
        raise InputError(str(error)) from None


@SOMETHING_TO_READ.around("fairseq.checkpoint_utils:load_checkpoint")
def _validation_text_first(load_checkpoint: Callable[..., Any], cfg: Any, trainer: Any, **kwargs: Any) -> Any:
    from fairseq import utils

    dataset, task = trainer.cfg.dataset, trainer.task
    if not dataset.disable_validation:
        for split in ["valid"] if dataset.combine_valid_subsets else dataset.valid_subset.split(","):
            task.get_batch_iterator(
                task.dataset(split),
                max_tokens=dataset.max_tokens_valid,
                max_sentences=dataset.batch_size_valid,
                max_positions=utils.resolve_max_positions(
                    task.max_positions(), trainer.model.max_positions()
                ),
                ignore_invalid_inputs=dataset.skip_invalid_size_inputs_valid_test,
                disable_iterator_cache=True,
            )
    return load_checkpoint(cfg, trainer, **kwargs)
