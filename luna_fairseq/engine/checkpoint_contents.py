"""What a checkpoint is asked when it is loaded, and what is kept in it for that."""

import sys
import zipfile
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence

import torch

from luna_fairseq.checks import same_training
from luna_fairseq.checks.dictionaries import KEY, check_fingerprints, fingerprints_of, stored_fingerprints
from luna_fairseq.checks.model_options import dataclass_of, plain_options
from luna_fairseq.engine import provenance
from luna_fairseq.engine.checkpoints import damage, intact_neighbour, why_unreadable
from luna_fairseq.engine.mend import RIGHT, Function, Mend
from luna_fairseq.errors import InputError

CHECKED_CHECKPOINTS = Mend(
    "checked-checkpoints",
    RIGHT,
    "weights with a flipped bit, other dictionaries of the same size, another task or direction, and "
    "options that an architecture has gained since are loaded without a word; --patience counts anew; "
    "nothing says which version of luna_fairseq trained",
)

# What a loaded checkpoint tells the trainer (extra_state) and the task (task_state) that are given it.
_FOUND = "luna_fairseq.found"
Found = Dict[str, Any]


@CHECKED_CHECKPOINTS.around("fairseq.checkpoint_utils:load_checkpoint_to_cpu")
def _read(load: Function, path: str, arg_overrides: Any = None, *args: Any, **kw: Any) -> Any:
    if zipfile.is_zipfile(path) and damage(Path(path)) is not None:
        raise InputError(f"{path} is damaged{intact_neighbour(Path(path))}")
    asked = same_training.asked_languages(arg_overrides)
    others = arg_overrides and {name: v for name, v in arg_overrides.items() if name not in asked}
    try:
        state = load(path, others, *args, **kw)
    except Exception:
        fault = _fault_of_file(path)
        if fault is None:
            raise
        raise InputError(f"{path} {fault}{intact_neighbour(Path(path))}") from None
    fill_in_options(state)
    same_training.give_languages(path, state, asked)
    found = {
        "path": str(path),
        "identity": same_training.stored_identity(state),
        "options": same_training.stored_options(state),
        "dictionaries": stored_fingerprints(state),
    }
    # A task is given its own state alone when a model is loaded for use, the trainer gets extra_state back.
    if same_training.is_known(found["identity"]):
        state["task_state"] = {**(state.get("task_state") or {}), _FOUND: found}
    if state.get("extra_state") is not None:
        state["extra_state"] = {**state["extra_state"], _FOUND: found}
    return state


def _fault_of_file(path: str) -> Optional[str]:
    """What makes ``path`` no checkpoint, or None when the failure must have another reason."""
    try:
        state = torch.load(path, map_location="cpu")
    except OSError:
        return None
    except Exception as error:  # what a damaged file raises depends on where it is damaged
        return why_unreadable(Path(path), error)
    if not isinstance(state, dict) or "model" not in state or not {"args", "cfg"}.intersection(state):
        return "is no fairseq checkpoint: there is no model with its configuration in it"
    return None


def fill_in_options(state: Mapping[str, Any]) -> None:
    """Give a configuration, in place, what it lacks: the defaults of what its model has gained since, where
    fairseq would ask today's preset, and {} for a None of --eval-bleu's that older versions stored."""
    from omegaconf import OmegaConf, open_dict

    for name in ("eval_bleu_args", "eval_bleu_detok_args"):
        if getattr(state.get("args"), name, "") is None:
            setattr(state["args"], name, "{}")
    model: Any = (state.get("cfg") or {}).get("model")
    # Before fairseq kept configurations it kept args: those of the authors, for whom presets are right.
    if state.get("args") is not None or not OmegaConf.is_config(model):
        return
    dataclass = dataclass_of(plain_options(model))
    with open_dict(model):
        for name, default in plain_options(dataclass()).items() if dataclass is not None else ():
            if name not in model:
                model[name] = default


def _compare_dictionaries(found: Found, task: Any, left_out: Sequence[str] = ()) -> None:
    known = same_training.is_known(same_training.identity_of(task))
    if known and (found["dictionaries"] is not None or dataclass_of(found["options"]) is not None):
        check_fingerprints(found["path"], found["dictionaries"], fingerprints_of(task), left_out)


@CHECKED_CHECKPOINTS.around("fairseq.tasks.fairseq_task:FairseqTask.load_state_dict")
def _compared_in_use(load_state_dict: Function, self: Any, state_dict: Any) -> Any:
    state_dict = dict(state_dict)
    found = state_dict.pop(_FOUND, None)
    if found is not None:
        same_training.check_identity(found["path"], found["identity"], same_training.identity_of(self))
        _compare_dictionaries(found, self)
    return load_state_dict(self, state_dict)


@CHECKED_CHECKPOINTS.around("fairseq.trainer:Trainer.save_checkpoint")
def _kept(save: Function, self: Any, filename: str, extra_state: Any, *args: Any, **kw: Any) -> Any:
    identity = same_training.kept_identity(self)
    kept = {provenance.KEY: provenance.of_this_process(), same_training.KEY: identity}
    if same_training.is_known(identity):
        kept[KEY] = fingerprints_of(self.task)
    counter = _early_stopping()
    if hasattr(counter, "best"):
        kept["patience"] = [float(counter.best), counter.num_runs]
    return save(self, filename, {**extra_state, **kept}, *args, **kw)


@CHECKED_CHECKPOINTS.around("fairseq.trainer:Trainer.load_checkpoint")
def _compared_in_training(
    load_checkpoint: Function,
    self: Any,
    filename: str,
    reset_optimizer: bool = False,
    reset_lr_scheduler: bool = False,
    optimizer_overrides: Any = None,
    reset_meters: bool = False,
    *args: Any,
    **kwargs: Any,
) -> Any:
    given = (reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters)
    provenance.say()
    extra_state = load_checkpoint(self, filename, *given, *args, **kwargs)
    found = extra_state.pop(_FOUND, None) if extra_state is not None else None
    if found is None:
        return extra_state
    same_training.compare_with_run(filename, self, found["identity"], found["options"], reset_optimizer)
    # The classes of another task are what fine-tuning is for.
    _compare_dictionaries(found, self.task, ("label",) if reset_optimizer else ())
    counter = _early_stopping()
    if counter is not None and "patience" in extra_state and not reset_meters:
        counter.best, counter.num_runs = extra_state["patience"]
    return extra_state


def _early_stopping() -> Any:
    """fairseq-train's function that counts, on which it keeps the count; None in another program."""
    programs = (sys.modules.get(name) for name in ("__main__", "fairseq_cli.train"))
    return next((f for f in (getattr(m, "should_stop_early", None) for m in programs) if f), None)
