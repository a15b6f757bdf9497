"""What a checkpoint was trained as: which run, task and languages, and the options of its model. Compared
wherever it is loaded, and by luna-average-checkpoints.

Of what this package wrote, extra_state says the run, task and languages; of anything else, its configuration.
"""

import logging
import uuid
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from luna_fairseq.checks.model_options import dataclass_of, differences, plain_options
from luna_fairseq.errors import InputError
from luna_fairseq.loggers import warn_once

logger = logging.getLogger(__name__)

KEY = "luna_fairseq.training"  # in a checkpoint's extra_state
_LANGUAGES = ("source_lang", "target_lang")
# Options of a task without which the model reads its input as something else.
_READING = (
    "encoder_langtok",
    "decoder_langtok",
    "init_token",
    "separator_token",
    "pixel_normalization",
    "num_classes",
    "regression_target",
)
# Tasks whose models nothing but fine-tuning makes into those of another.
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
    """Name, languages and what decides how a task reads its input, as far as it has them."""
    from fairseq.tasks import TASK_REGISTRY

    options = getattr(task, "cfg", None) or getattr(task, "args", None) or {}
    name = next((name for name, one in TASK_REGISTRY.items() if one is type(task)), None)
    return _identity({**plain_options(options), "_name": name})


def stored_identity(state: Mapping[str, Any]) -> Dict[str, Any]:
    """That of the task of a checkpoint; of one of this package also ``run``, which is all checkpoints' of one
    run."""
    found = (state.get("extra_state") or {}).get(KEY)
    if found is not None:
        return dict(found)
    options = (state.get("cfg") or {}).get("task") or state.get("args") or {}
    return _identity(plain_options(options))


def stored_options(state: Mapping[str, Any]) -> Dict[str, Any]:
    """Those of a checkpoint's model; older versions of fairseq store one flat ``args``."""
    return plain_options((state.get("cfg") or {}).get("model") or state.get("args") or {})


def _identity(options: Mapping[str, Any]) -> Dict[str, Any]:
    known = {"task": options.get("_name") or options.get("task")}
    known.update((name, options[name]) for name in (*_LANGUAGES, *_READING) if name in options)
    return known


def check_identity(path: Any, stored: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise InputError where the checkpoint ``path`` was trained for another task or direction than it is
    used for, or reads its input as something else."""
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
    """Raise InputError where the weights of ``path`` would compute something else with options ``ours``."""
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
    """Options of :func:`differences` as on a command line, with their values at ``place`` of each."""
    words = []
    for difference in found:
        option, value = f"--{difference[0].replace('_', '-')}", difference[place]
        given = f"no {option}" if value is None or value is False else option
        words.append(given if value is None or isinstance(value, bool) else f"{option} {value}")
    return ", ".join(words)


def is_known(identity: Mapping[str, Any]) -> bool:
    """Whether it is of a task whose dictionaries are those of what its model reads and writes, in training as
    in use."""
    return identity.get("task") in KINDS


def kept_identity(trainer: Any) -> Dict[str, Any]:
    """That of the trainer's task and run."""
    if getattr(trainer, "run_name", None) is None:
        trainer.run_name = uuid.uuid4().hex
    return {**identity_of(trainer.task), "run": trainer.run_name}


def asked_languages(arg_overrides: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """Those that fairseq-validate or from_pretrained ask a checkpoint for."""
    given = arg_overrides or {}
    return {name: given[name] for name in _LANGUAGES if given.get(name) is not None}


def give_languages(path: Any, state: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Compare a checkpoint's languages with those that are asked for, and write them into its configuration:
    a task that found them in the names of files has none there."""
    from fairseq.dataclass.utils import overwrite_args_by_name

    identity = stored_identity(state)
    check_identity(path, identity, asked)
    languages = {**{name: identity.get(name) for name in _LANGUAGES}, **asked}
    if state.get("cfg") is not None:
        overwrite_args_by_name(state["cfg"], {name: value for name, value in languages.items() if value})


def compare_with_run(
    path: Any, trainer: Any, stored: Mapping[str, Any], options: Mapping[str, Any], reset_optimizer: bool
) -> None:
    """Compare what the checkpoint ``path`` was trained as (its identity and its model's options) with the run
    that loads it; go on under its name, unless ``reset_optimizer`` begins another training with its weights.
    Raises InputError where it goes on as another task, direction or model."""
    ours = plain_options(trainer.cfg.model)
    if dataclass_of(options) is None:  # of fairseq's models every option may have become another
        options = ours
    if not reset_optimizer:
        check_identity(path, stored, identity_of(trainer.task))
        check_options(path, options, ours)
        trainer.run_name = stored.get("run")
        return
    others = _other_options(path, options, ours)
    if others:
        logger.warning(f"{others} begin as something else")
