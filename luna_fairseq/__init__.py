"""Luna: Linear Unified Nested Attention (Ma et al., NeurIPS 2021) as a fairseq plugin.

Importing this package imports neither torch nor fairseq, so that ``luna_fairseq.ops``,
``luna_fairseq.optim.apollo`` and the plain modules need torch alone. Models, tasks and the like are
registered with fairseq (:func:`register`)

* when fairseq is imported already, as in all of its commands: ``--user-dir luna_fairseq`` is imported by
  fairseq;
* when fairseq asks for that folder after the package was imported for something else;
* when ``luna_fairseq.models`` is imported, or asked for here: ``from luna_fairseq import LunaModel``.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from os.path import abspath, realpath
from typing import Any, List

from luna_fairseq.errors import in_command
from luna_fairseq.loggers import set_up_loggers

__version__ = "0.2.0"

_MODELS = ("LunaClassifier", "LunaLanguageModel", "LunaMaskedLM", "LunaModel")
# The changes to fairseq come first.
_REGISTERING = (
    "engine",
    "models",
    "models.softmax_ablation",
    "optim.fairseq_apollo",
    "optim.fairseq_milestone",
    "lra.criterion",
    "lra.task",
    "streaming.task",
    "peers.models",
)


def register() -> None:
    """Register everything with fairseq. Doing so again changes nothing.

    Raises:
        MissingRequirementError: there is no fairseq; the message says what to install
    """
    for name in _REGISTERING:
        import_module(f"{__name__}.{name}")


class _Folders(List[str]):
    """Where the package lies. Whether a --user-dir lies there is all that fairseq asks of one that is
    imported already: by whatever name, as a link lies beside fairseq."""

    def __contains__(self, folder: object) -> bool:
        register()
        return realpath(str(folder)) in map(realpath, self)


def __getattr__(name: str) -> Any:
    if name in _MODELS:
        return getattr(import_module(f"{__name__}.models"), name)
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


# fairseq comes to an installed one as fairseq/../luna_fairseq, and asks for it by its shorter name.
__path__ = _Folders(map(abspath, __path__))
if sys.modules.get("fairseq") is not None:
    register()
elif in_command():
    set_up_loggers()
