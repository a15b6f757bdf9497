"""Adaptation of a recipe (YAML file of fairseq-train options) to a machine: GPUs, batch size, precision."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from luna_fairseq.commands.arguments import positive
from luna_fairseq.commands.recipes import Recipe
from luna_fairseq.commands.reporting import USER_DIR
from luna_fairseq.errors import InputError

Capability = Optional[Tuple[int, int]]
# Options of which one selects the precision. fairseq adds --fp16 or --bf16 to the memory-efficient ones.
PRECISIONS = ("memory_efficient_fp16", "memory_efficient_bf16", "amp", "fp16", "bf16", "fp32")


@dataclass(frozen=True)
class Launch:
    """Command-line options for training with a recipe on the GPUs of a machine.

    Attributes:
        options: arguments of fairseq-train, without DATA.
        hydra: arguments of fairseq-hydra-train that override the recipe.
        notes: lines to print that explain the batch size, the precision and any removed options.
        save_dir: checkpoint folder.
        precision: option of the precision without dashes in front, such as "bf16" or "amp", or "fp32".
    """

    options: List[str]
    hydra: List[str]
    notes: List[str]
    save_dir: str
    precision: str


def compute_launch(recipe: Recipe, user_options: Sequence[str], gpus: int, capability: Capability) -> Launch:
    """Return the options for training with a recipe, at the recipe's batch size, on this number of GPUs.

    ``user_options`` of fairseq-train override the recipe. A recipe that states its batch size for one GPU
    uses one GPU, unless the user sets ``--distributed-world-size``. ``--cpu`` uses one process in place of
    the GPUs. ``capability`` is the compute capability, such as (8, 0), or None on a CPU.
    """
    parsed = _parse_options(user_options)
    on_cpu = parsed.cpu or recipe.settings.get("common", {}).get("cpu")
    if on_cpu:
        capability = None
    options, hydra = ["--user-dir", USER_DIR, *recipe.words("update_freq", *PRECISIONS)], []
    folder = parsed.save_dir or recipe.settings.get("checkpoint", {}).get("save_dir")
    if folder is None:
        folder = f"checkpoints/{recipe.path.stem}"
        options += ["--save-dir", folder]
        hydra.append(f"checkpoint.save_dir={folder}")
    devices = parsed.distributed_world_size or gpus
    if (on_cpu or recipe.gpus == 1) and gpus > 1 and parsed.distributed_world_size is None:
        devices = 1
        options += ["--distributed-world-size", "1"]
        hydra.append("distributed_training.distributed_world_size=1")
    frequency, batch = _compute_update_freq(recipe, parsed, devices)
    if frequency is not None:
        options += ["--update-freq", str(frequency)]
        hydra.append(f"optimization.update_freq=[{frequency}]")
    precision, flags, reason = _choose_precision(recipe, parsed, capability)
    hydra += [f"common.{flag[2:].replace('-', '_')}=true" for flag in flags]
    options += [*flags, *(word for word in user_options if word != "--fp32")]
    notes = [batch, reason]
    if recipe.left_out:
        notes.append(f"left out with the components they belong to: {' '.join(recipe.left_out)}")
    return Launch(options, hydra, notes, folder, precision)


def _compute_update_freq(
    recipe: Recipe, parsed: argparse.Namespace, devices: int
) -> Tuple[Optional[int], str]:
    """Compute ``--update-freq``, the number of batches whose gradients are accumulated per update.

    Return the value (None if the user sets ``--update-freq``), and a line that explains the batch size. Raise
    InputError if no value gives the recipe's batch size on ``devices`` GPUs.
    """
    unit, size = _batch_unit(recipe)
    per_gpu = getattr(parsed, size) or recipe.settings["dataset"][size]
    stated = recipe.settings.get("optimization", {}).get("update_freq") or 1
    each = f"batch: {devices} GPU{'s' if devices > 1 else ''} x {per_gpu:,} {unit}"
    if parsed.update_freq is not None:
        return None, f"{each} x --update-freq {parsed.update_freq} (your option)"
    if isinstance(stated, list) and len(stated) > 1:
        raise InputError(
            f"{recipe.path}: update_freq {stated} has a value for each epoch, but luna-train adapts only one "
            f"value to the GPUs. Give --update-freq {','.join(map(str, stated))}, or set one value"
        )
    accumulated = int(stated[0] if isinstance(stated, list) else stated)
    batch = recipe.gpus * recipe.settings["dataset"][size] * accumulated
    frequency = max(1, round(batch / (devices * per_gpu)))
    total = devices * per_gpu * frequency
    if abs(total - batch) > batch / 1000:
        fitting = f"--{size.replace('_', '-')} {_largest_batch_per_gpu(batch, devices, per_gpu, unit)}"
        raise InputError(
            f"{devices} GPUs x {per_gpu:,} {unit} do not divide the recipe's batch of {batch:,} {unit}. "
            f"Use {fitting}, another number of GPUs (CUDA_VISIBLE_DEVICES), or --update-freq for another "
            "batch"
        )
    return frequency, f"{each} x --update-freq {frequency} = {total:,} {unit}"


def _batch_unit(recipe: Recipe) -> Tuple[str, str]:
    """Return the unit and the option of a recipe's batch size, such as ("tokens", "max_tokens")."""
    dataset = recipe.settings.get("dataset", {})
    for unit, size in (("tokens", "max_tokens"), ("sequences", "batch_size")):
        if dataset.get(size):
            return unit, size
    raise InputError(f"{recipe.path} has neither dataset.max_tokens nor dataset.batch_size. Set one of them")


def _largest_batch_per_gpu(batch: int, devices: int, per_gpu: int, unit: str) -> int:
    """Return the largest batch size per GPU, at most ``per_gpu``, that gives the recipe's total ``batch``.

    The ``unit`` is "tokens" or "sequences". A batch size in tokens is rounded down.
    """
    frequency = -(-batch // (devices * per_gpu))
    if unit == "sequences":
        while batch % (devices * frequency) and devices * frequency < batch:
            frequency += 1
    return max(1, batch // (devices * frequency))


def _choose_precision(
    recipe: Recipe, parsed: argparse.Namespace, capability: Capability
) -> Tuple[str, List[str], str]:
    """Choose the precision of the user or the recipe. By default, it depends on the compute capability.

    The default is bf16 from compute capability 8.0, fp16 from 7.0, else fp32. Return the precision, options
    such as ``["--bf16"]``, and a line that explains the choice. ``capability`` is None without a GPU.
    """
    stated = recipe.settings.get("common", {})
    users = next((name for name in PRECISIONS if getattr(parsed, name)), None)
    recipes = next((name for name in PRECISIONS if stated.get(name)), None)
    chosen, why = users or recipes, "your option" if users else "the recipe"
    if chosen is None:
        major = capability[0] if capability else 0
        chosen = "bf16" if major >= 8 else "fp16" if major == 7 else "fp32"
        why = f"compute capability {capability[0]}.{capability[1]}" if capability else "no GPU"
    option = chosen.replace("_", "-")
    words = [] if chosen == "fp32" or users else [f"--{option}"]
    # fairseq would flatten all gradients into one tensor, but Apollo needs the norm of each gradient.
    if chosen == "fp16" and (parsed.optimizer or recipe.settings["optimizer"]["_name"]) == "apollo":
        words.append("--fp16-no-flatten-grads")
    return option, words, f"precision: {option} ({why})"


def _parse_options(user_options: Sequence[str]) -> argparse.Namespace:
    """Parse the user's fairseq-train options for batch size, GPUs, precision and checkpoint folder."""
    # The usage of this parser is not shown, because it differs from that of the command.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, usage=argparse.SUPPRESS)
    parser.add_argument("--max-tokens", type=positive)
    parser.add_argument("--batch-size", "--max-sentences", type=positive)
    parser.add_argument("--distributed-world-size", type=positive)
    parser.add_argument("--update-freq")
    parser.add_argument("--save-dir")
    parser.add_argument("--optimizer")
    parser.add_argument("--cpu", action="store_true")
    for name in PRECISIONS:
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true")
    return parser.parse_known_args(list(user_options))[0]
