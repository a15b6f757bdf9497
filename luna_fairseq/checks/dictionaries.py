"""Which dictionaries a checkpoint was trained with: a fingerprint of each, compared wherever it is loaded."""

import hashlib
import logging
from typing import Any, Dict, Mapping, Optional, Sequence

from luna_fairseq.errors import InputError

logger = logging.getLogger(__name__)

KEY = "luna_fairseq.dictionaries"  # in a checkpoint's extra_state
_BEFORE = "dictionaries"  # the key until version 0.1


def fingerprint(dictionary: Any) -> str:
    """Number of entries, and a short hash of all symbols in their order."""
    state = hashlib.sha256()
    for index in range(len(dictionary)):
        state.update(dictionary[index].encode("utf-8", "surrogatepass") + b"\n")
    return f"{len(dictionary)} entries, {state.hexdigest()[:16]}"


def fingerprints_of(task: Any) -> Dict[str, str]:
    """Those of source, target and labels, as far as the task has them."""
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
    """Those in a checkpoint; None in one that has none."""
    extra_state = state.get("extra_state") or {}
    return extra_state.get(KEY, extra_state.get(_BEFORE))


def check_fingerprints(
    path: Any, stored: Optional[Mapping[str, str]], ours: Mapping[str, str], left_out: Sequence[str] = ()
) -> None:
    """Raise InputError where a dictionary of the checkpoint ``path`` is another one than the data's; say so
    where it has none."""
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
