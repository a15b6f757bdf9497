"""Luna: Linear Unified Nested Attention (Ma et al., NeurIPS 2021) as a fairseq plugin.

Importing this package imports neither torch nor fairseq, so that ``luna_fairseq.ops``,
``luna_fairseq.optim.apollo`` and the plain modules need torch alone. Models, tasks and other components are
registered with fairseq by :func:`register`, which is called in three cases:

* fairseq has been imported before, as in its commands, which import this package for
  ``--user-dir luna_fairseq``;
* fairseq looks for its ``--user-dir`` after this package has been imported for another purpose;
* ``luna_fairseq.models`` is imported, also through ``from luna_fairseq import LunaModel``.
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
# Modules that register components. The engine comes first, because it changes fairseq itself.
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
    """Register all models, tasks and other components with fairseq. A second call changes nothing.

    Raises:
        MissingRequirementError: fairseq is not installed; the message says what to install.
    """
    for name in _REGISTERING:
        import_module(f"{__name__}.{name}")


class _Folders(List[str]):
    """Folders of this package, which register its components when fairseq looks for its ``--user-dir``.

    If the package has been imported before, a membership test is all that fairseq does with ``--user-dir``.
    The test resolves links, because fairseq may know the package through a link beside its own folder.
    """

    def __contains__(self, folder: object) -> bool:
        register()
        return realpath(str(folder)) in map(realpath, self)


def __getattr__(name: str) -> Any:
    if name in _MODELS:
        return getattr(import_module(f"{__name__}.models"), name)
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


# fairseq imports an installed package as fairseq/../luna_fairseq, but then looks for the shorter path.
__path__ = _Folders(map(abspath, __path__))
if sys.modules.get("fairseq") is not None:
    register()
elif in_command():
    set_up_loggers()
