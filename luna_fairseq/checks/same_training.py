"""Checks that a checkpoint is used with the task, languages, dictionaries and options of its training.

Some task settings must match between training and later use of the model. These settings are called the
*identity* of the training: the name of the task, its languages, and the options that determine how input is
read. Checkpoints of this package store the identity, a random name of the run, and a fingerprint of each
dictionary in ``extra_state``. For other checkpoints, the identity is read from the configuration, and the
dictionaries are unknown.
"""

import hashlib
import logging
import uuid
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from luna_fairseq.checks.model_options import find_differences, model_dataclass, plain_options
from luna_fairseq.errors import InputError
from luna_fairseq.loggers import warn_once

logger = logging.getLogger(__name__)

# Keys in a checkpoint's extra_state.
KEY = "luna_fairseq.training"
DICTIONARIES = "luna_fairseq.dictionaries"
_LANGUAGES = ("source_lang", "target_lang")
# Options of a task that decide how the model reads its input.
_INPUT_OPTIONS = (
    "add_bos_token",
    "encoder_langtok",
    "decoder_langtok",
    "init_token",
    "separator_token",
    "pixel_normalization",
    "num_classes",
    "regression_target",
)
# Name of a task -> purpose of the task. Only fine-tuning gives a model another purpose.
KINDS = {
    "translation": "translation",
    "language_modeling": "language modelling",
    "streaming_lm": "language modelling",
    "masked_lm": "masked language modelling",
    "sentence_prediction": "sentence prediction",
    "sentence_ranking": "sentence ranking",
    "lra-text": "classifying sequences of tokens",
    "long_range_arena": "classifying sequences of tokens",
    "lra-image": "classifying images",
}


def task_identity(task: Any) -> Dict[str, Any]:
    """Return the task settings that must match between training and later use of the model.

    These are the name of the task, its languages, and the options that determine how input is read.
    """
    from fairseq.tasks import TASK_REGISTRY

    options = getattr(task, "cfg", None) or getattr(task, "args", None) or {}
    name = next((name for name, task_class in TASK_REGISTRY.items() if task_class is type(task)), None)
    return _select_identity({**plain_options(options), "_name": name})


def stored_identity(state: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a checkpoint's training settings that must match when the checkpoint is used.

    Checkpoints of this package also have "run", a random name that all checkpoints of a run share.
    """
    stored = (state.get("extra_state") or {}).get(KEY)
    if stored is not None:
        return dict(stored)
    options = (state.get("cfg") or {}).get("task") or state.get("args") or {}
    return _select_identity(plain_options(options))


def stored_options(state: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the model options stored in a checkpoint."""
    return plain_options((state.get("cfg") or {}).get("model") or state.get("args") or {})


def _select_identity(options: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the task options that must match between training and later use of the model."""
    identity = {"task": options.get("_name") or options.get("task")}
    identity.update((name, options[name]) for name in (*_LANGUAGES, *_INPUT_OPTIONS) if name in options)
    return identity


def check_identity(path: Any, stored: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise InputError if a checkpoint was trained with another task type, languages or input options.

    ``stored`` holds the checkpoint's settings, and ``ours`` the settings from :func:`task_identity`.
    """
    purposes = KINDS.get(str(stored.get("task"))), KINDS.get(str(ours.get("task")))
    if None not in purposes and purposes[0] != purposes[1]:
        raise InputError(
            f"{path} was trained for {purposes[0]}, not for {purposes[1]}. Give --task {stored['task']}, or "
            f"a checkpoint of --task {ours['task']}"
        )
    if purposes == ("translation", "translation") and not any(stored.get(name) for name in _LANGUAGES):
        warn_once(
            f"{path} does not say which languages it translates. Check that your data has the same languages"
        )
    _check_languages(path, stored, ours)
    for name in _INPUT_OPTIONS if stored.get("task") == ours.get("task") else ():
        if name in stored and name in ours and stored[name] != ours[name]:
            trained, present = (_format_options([(name, options[name])]) for options in (stored, ours))
            raise InputError(
                f"{path} was trained with {trained}, but this command uses {present}. Give {trained}"
            )


def _check_languages(path: Any, stored: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise InputError if the training of a checkpoint and the current task have different languages.

    ``stored`` and ``ours`` are the settings of the training and of the task. Unknown languages are accepted.
    """
    known = [name for name in _LANGUAGES if stored.get(name) and ours.get(name)]
    if all(stored[name] == ours[name] for name in known):
        return
    expected, actual = (
        " to ".join(identity.get(name) or "?" for name in _LANGUAGES) for identity in (stored, ours)
    )
    source, target = (stored.get(name) for name in _LANGUAGES)
    raise InputError(
        f"{path} was trained to translate {expected}, not {actual}. Give -s {source} -t {target}, or a "
        "checkpoint of that direction"
    )


def check_options(path: Any, stored: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise InputError if a checkpoint and a run differ in model options that change the output.

    ``stored`` and ``ours`` are the model options of the checkpoint ``path`` and of this run.
    """
    difference = _describe_differences(path, stored, ours)
    if difference:
        raise InputError(
            f"{difference}, which changes the output of the same weights. Use the options of the training, "
            "or another --save-dir"
        )


def _describe_differences(path: Any, stored: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Describe how a checkpoint's fixed model options differ from a run's. Return "" if they are equal."""
    found = find_differences(stored, ours)
    if not found:
        return ""
    trained, present = (_format_options([(name, values[i]) for name, *values in found]) for i in (0, 1))
    return f"{path} was trained with {trained}, but this run has {present}"


def _format_options(options: Sequence[Tuple[str, Any]]) -> str:
    """Format model options as command-line options, with "no" before a disabled option.

    Example:
        >>> _format_options([("untie_luna_kv", True), ("causal_decay", False), ("encoder_layers", 6)])
        '--untie-luna-kv, no --causal-decay, --encoder-layers 6'
    """
    words = []
    for name, value in options:
        option = f"--{name.replace('_', '-')}"
        if value is None or value is False:
            words.append(f"no {option}")
        else:
            words.append(option if value is True else f"{option} {value}")
    return ", ".join(words)


def has_known_task(identity: Mapping[str, Any]) -> bool:
    """Return True if the task in a checkpoint's ``identity`` is supported by the checks in this module.

    Example:
        >>> has_known_task({"task": "translation"}), has_known_task({"task": "somebody_elses_task"})
        (True, False)
    """
    return identity.get("task") in KINDS


def trainer_identity(trainer: Any) -> Dict[str, Any]:
    """Return the settings to store in a checkpoint: task, languages, input options and a random run name."""
    if getattr(trainer, "run_name", None) is None:
        trainer.run_name = uuid.uuid4().hex
    return {**task_identity(trainer.task), "run": trainer.run_name}


def overridden_languages(arg_overrides: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """Return the language options among the options that override a checkpoint's configuration."""
    overrides = arg_overrides or {}
    return {name: overrides[name] for name in _LANGUAGES if overrides.get(name) is not None}


def set_languages(path: Any, state: Mapping[str, Any], languages: Mapping[str, Any]) -> None:
    """Write the source and target language into a loaded checkpoint's configuration, in place.

    ``languages`` supplements the stored languages. Raises InputError if the two contradict each other.
    """
    from fairseq.dataclass.utils import overwrite_args_by_name

    identity = stored_identity(state)
    check_identity(path, identity, languages)
    languages = {**{name: identity.get(name) for name in _LANGUAGES}, **languages}
    if state.get("cfg") is not None:
        overwrite_args_by_name(state["cfg"], {name: value for name, value in languages.items() if value})


def compare_with_run(
    path: Any, trainer: Any, stored: Mapping[str, Any], options: Mapping[str, Any], reset_optimizer: bool
) -> None:
    """Raise InputError if the settings of a run do not match a checkpoint that the run loads.

    ``stored`` and ``options`` are the task settings and the model options of the checkpoint. A resumed run
    takes over the run name from the checkpoint. With ``reset_optimizer``, the weights start a new training
    with a new run name, and differing model options only cause a warning.
    """
    ours = plain_options(trainer.cfg.model)
    if model_dataclass(options) is None:
        # Any option of a model of another package may differ.
        options = ours
    if not reset_optimizer:
        check_identity(path, stored, task_identity(trainer.task))
        check_options(path, options, ours)
        trainer.run_name = stored.get("run")
        return
    difference = _describe_differences(path, options, ours)
    if difference:
        logger.warning(f"{difference}, which changes the output of the same weights")


def fingerprint(dictionary: Any) -> str:
    """Return the number of entries in a dictionary and a hash of its symbols, to detect changes.

    Example:
        >>> from fairseq.data import Dictionary
        >>> fingerprint(Dictionary())
        '4 entries, 5140f07260ee51d5'
    """
    state = hashlib.sha256()
    for index in range(len(dictionary)):
        state.update(dictionary[index].encode("utf-8", "surrogatepass") + b"\n")
    return f"{len(dictionary)} entries, {state.hexdigest()[:16]}"


def task_fingerprints(task: Any) -> Dict[str, str]:
    """Return fingerprints (size, hash) of a task's dictionaries, keyed by "source", "target" or "label"."""
    from fairseq.data import Dictionary

    fingerprints = {}
    for name in ("source", "target", "label"):
        try:
            dictionary = getattr(task, f"{name}_dictionary", None)
        except NotImplementedError:
            continue
        if isinstance(dictionary, Dictionary):
            fingerprints[name] = fingerprint(dictionary)
    return fingerprints


def stored_fingerprints(state: Mapping[str, Any]) -> Optional[Dict[str, str]]:
    """Return a checkpoint's fingerprints, keyed by "source", "target" and "label", or None if unknown."""
    extra_state = state.get("extra_state") or {}
    return extra_state.get(DICTIONARIES)


def check_fingerprints(
    path: Any, stored: Optional[Mapping[str, str]], ours: Mapping[str, str], may_differ: Sequence[str] = ()
) -> None:
    """Raise InputError if the dictionaries of the data differ from a checkpoint's dictionaries.

    ``stored`` and ``ours`` map dictionary names to the fingerprints of the training and of the data. If
    ``stored`` is None, only a warning is logged. Dictionaries in ``may_differ`` are not compared.
    """
    if stored is None:
        logger.warning(
            f"{path} does not say which dictionaries it was trained with, because an older version or "
            "another program wrote it. Check that your data has the same dictionaries"
        )
        return
    for name, present in ours.items():
        if name not in may_differ and stored.get(name, present) != present:
            raise InputError(
                f"{path} was trained with another {name} dictionary ({stored[name]}) than the data's "
                f"({present}). Give data that was prepared with the dictionaries of the training"
            )
