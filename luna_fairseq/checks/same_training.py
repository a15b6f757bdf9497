"""The identity of a training: its run, task, languages, dictionaries, and the options of its model.

A checkpoint stores the identity. It is compared wherever a checkpoint is loaded, and by
luna-average-checkpoints. A checkpoint of this package has it in ``extra_state``. For any other checkpoint,
task, languages and options come from its configuration, and the dictionaries are unknown.
"""

import hashlib
import logging
import uuid
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from luna_fairseq.checks.model_options import dataclass_of, differences, plain_options
from luna_fairseq.errors import InputError
from luna_fairseq.loggers import warn_once

logger = logging.getLogger(__name__)

# Keys in a checkpoint's extra_state.
KEY = "luna_fairseq.training"
DICTIONARIES = "luna_fairseq.dictionaries"
_DICTIONARIES_0_1 = "dictionaries"  # the key in version 0.1
_LANGUAGES = ("source_lang", "target_lang")
# Options of a task that decide how the model reads its input.
_READING = (
    "encoder_langtok",
    "decoder_langtok",
    "init_token",
    "separator_token",
    "pixel_normalization",
    "num_classes",
    "regression_target",
)
# Kinds of tasks. A model of one kind becomes a model of another by fine-tuning alone.
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


def identity_of(task: Any) -> Dict[str, Any]:
    """Return the name and languages of a task, and its options that decide how it reads its input."""
    from fairseq.tasks import TASK_REGISTRY

    options = getattr(task, "cfg", None) or getattr(task, "args", None) or {}
    name = next((name for name, one in TASK_REGISTRY.items() if one is type(task)), None)
    return _identity({**plain_options(options), "_name": name})


def stored_identity(state: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the identity of the task that a checkpoint was trained for.

    In a checkpoint of this package it includes ``run``, a name that all checkpoints of a run share.
    """
    found = (state.get("extra_state") or {}).get(KEY)
    if found is not None:
        return dict(found)
    options = (state.get("cfg") or {}).get("task") or state.get("args") or {}
    return _identity(plain_options(options))


def stored_options(state: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the options of a checkpoint's model. Older versions of fairseq store one flat ``args``."""
    return plain_options((state.get("cfg") or {}).get("model") or state.get("args") or {})


def _identity(options: Mapping[str, Any]) -> Dict[str, Any]:
    known = {"task": options.get("_name") or options.get("task")}
    known.update((name, options[name]) for name in (*_LANGUAGES, *_READING) if name in options)
    return known


def check_identity(path: Any, stored: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Compare the task that a checkpoint was trained for with the task that it is used for.

    Args:
        path: file of the checkpoint, for the message.
        stored: identity from :func:`stored_identity`.
        ours: identity from :func:`identity_of`.

    Raises:
        InputError: kind of task, direction, or an option that decides how the input is read differs.
    """
    kinds = KINDS.get(str(stored.get("task"))), KINDS.get(str(ours.get("task")))
    if None not in kinds and kinds[0] != kinds[1]:
        raise InputError(
            f"{path} was trained for {kinds[0]}, not for {kinds[1]}: give --task {stored['task']}, or a "
            f"checkpoint of --task {ours['task']}"
        )
    if kinds == ("translation", "translation") and not any(stored.get(name) for name in _LANGUAGES):
        warn_once(f"{path} does not say which languages it translates: see to it that they are the data's")
    both = [(stored[name], ours[name]) for name in _LANGUAGES if stored.get(name) and ours.get(name)]
    if any(theirs != mine for theirs, mine in both):
        theirs, mine = (" to ".join(one.get(name) or "?" for name in _LANGUAGES) for one in (stored, ours))
        source, target = (stored.get(name) for name in _LANGUAGES)
        raise InputError(
            f"{path} was trained to translate {theirs}, not {mine}: give -s {source} -t {target}, or a "
            f"checkpoint of that direction"
        )
    for name in _READING if stored.get("task") == ours.get("task") else ():
        if name in stored and name in ours and stored[name] != ours[name]:
            raise InputError(
                f"{path} was trained with --{name.replace('_', '-')} {stored[name]}, which is {ours[name]} "
                "here: give what it was trained with"
            )


def check_options(path: Any, stored: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise InputError if options of a run give the weights of a checkpoint another meaning.

    Args:
        path: file of the checkpoint, for the message.
        stored: options of the training that wrote the checkpoint.
        ours: options of the run.
    """
    others = _other_options(path, stored, ours)
    if others:
        raise InputError(
            f"{others} fit, and would compute something else; go on with the options of the training, or "
            "into another --save-dir"
        )


def _other_options(path: Any, stored: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    found = differences(stored, ours)
    words = f"{path} was trained with {_words(found, 1)}, this run has {_words(found, 2)}: its weights"
    return words if found else ""


def _words(found: Sequence[Tuple[str, Any, Any]], place: int) -> str:
    """Write the result of :func:`differences` as on a command line.

    place: 1 for the values of the first model, 2 for those of the second.
    """
    words = []
    for difference in found:
        option, value = f"--{difference[0].replace('_', '-')}", difference[place]
        given = f"no {option}" if value is None or value is False else option
        words.append(given if value is None or isinstance(value, bool) else f"{option} {value}")
    return ", ".join(words)


def is_known(identity: Mapping[str, Any]) -> bool:
    """Return True for a task that we know to have the same dictionaries in training and in use."""
    return identity.get("task") in KINDS


def kept_identity(trainer: Any) -> Dict[str, Any]:
    """Return the identity that a trainer's checkpoint stores: that of its task, and the name of its run."""
    if getattr(trainer, "run_name", None) is None:
        trainer.run_name = uuid.uuid4().hex
    return {**identity_of(trainer.task), "run": trainer.run_name}


def asked_languages(arg_overrides: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """Return the languages among the overrides that fairseq-validate or from_pretrained pass."""
    given = arg_overrides or {}
    return {name: given[name] for name in _LANGUAGES if given.get(name) is not None}


def give_languages(path: Any, state: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Compare a checkpoint's languages with ``asked``, and write them into its configuration.

    The configuration has none if the task found the languages in the names of the data's files.

    Raises:
        InputError: the checkpoint was trained for other languages.
    """
    from fairseq.dataclass.utils import overwrite_args_by_name

    identity = stored_identity(state)
    check_identity(path, identity, asked)
    languages = {**{name: identity.get(name) for name in _LANGUAGES}, **asked}
    if state.get("cfg") is not None:
        overwrite_args_by_name(state["cfg"], {name: value for name, value in languages.items() if value})


def compare_with_run(
    path: Any, trainer: Any, stored: Mapping[str, Any], options: Mapping[str, Any], reset_optimizer: bool
) -> None:
    """Compare the training that a checkpoint comes from with the run that loads it.

    A run that resumes takes over the name of the run. With ``reset_optimizer`` another training starts from
    the weights, under a new name, and other options are a warning.

    Args:
        path: file of the checkpoint, for the message.
        trainer: fairseq's trainer.
        stored: identity from :func:`stored_identity`.
        options: options of the model from :func:`stored_options`.
        reset_optimizer: True if the run does not resume the training.

    Raises:
        InputError: the run resumes with another task, direction or model.
    """
    ours = plain_options(trainer.cfg.model)
    if dataclass_of(options) is None:  # a model of fairseq, any option of which may differ
        options = ours
    if not reset_optimizer:
        check_identity(path, stored, identity_of(trainer.task))
        check_options(path, options, ours)
        trainer.run_name = stored.get("run")
        return
    others = _other_options(path, options, ours)
    if others:
        logger.warning(f"{others} begin as something else")


def fingerprint(dictionary: Any) -> str:
    """Return the number of entries of a dictionary, and a short hash of its symbols in their order."""
    state = hashlib.sha256()
    for index in range(len(dictionary)):
        state.update(dictionary[index].encode("utf-8", "surrogatepass") + b"\n")
    return f"{len(dictionary)} entries, {state.hexdigest()[:16]}"


def fingerprints_of(task: Any) -> Dict[str, str]:
    """Return the fingerprints of a task's source, target and label dictionaries, if it has them."""
    from fairseq.data import Dictionary

    found = {}
    for name in ("source", "target", "label"):
        try:
            dictionary = getattr(task, f"{name}_dictionary", None)
        except NotImplementedError:
            continue
        if isinstance(dictionary, Dictionary):
            found[name] = fingerprint(dictionary)
    return found


def stored_fingerprints(state: Mapping[str, Any]) -> Optional[Dict[str, str]]:
    """Return the fingerprints in a checkpoint, or None if it has none."""
    extra_state = state.get("extra_state") or {}
    return extra_state.get(DICTIONARIES, extra_state.get(_DICTIONARIES_0_1))


def check_fingerprints(
    path: Any, stored: Optional[Mapping[str, str]], ours: Mapping[str, str], left_out: Sequence[str] = ()
) -> None:
    """Check that the data has the dictionaries that a checkpoint was trained with.

    Args:
        path: file of the checkpoint, for the message.
        stored: fingerprints of dictionaries in the checkpoint. None, as in old checkpoints, gives a warning.
        ours: fingerprints of the data's dictionaries.
        left_out: names of dictionaries that may differ.

    Raises:
        InputError: a dictionary differs.
    """
    if stored is None:
        logger.warning(
            f"{path} does not say which dictionaries it was trained with, as an older version or other "
            "program wrote it: see to it that the data has the same"
        )
        return
    for name, found in ours.items():
        if name not in left_out and stored.get(name, found) != found:
            raise InputError(
                f"{path} was trained with another {name} dictionary ({stored[name]}) than the data's "
                f"({found}): give data that was prepared with the dictionaries of the training"
            )
