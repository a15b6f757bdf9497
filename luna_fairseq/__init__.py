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

from luna_fairseq.command_errors import in_command
from luna_fairseq.loggers import set_up_loggers

__version__ = "0.2.0"

# Names that are loaded on first access, because their module needs fairseq, and that module.
_LAZY_NAMES = {
    "LunaClassifier": "models",
    "LunaLanguageModel": "models",
    "LunaMaskedLM": "models",
    "LunaModel": "models",
}
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


class _PackagePath(List[str]):
    """``__path__`` of this package. If fairseq finds its ``--user-dir`` in it, all components are registered.

    fairseq imports the folder of ``--user-dir``, and this import registers the components. The exception is a
    program that has imported this package before fairseq, for example for ``luna_fairseq.ops``. Nothing is
    registered at that time, and fairseq does not import a package twice. It only tests ``user_dir in
    luna_fairseq.__path__``, so that this test is the one place to register the components.
    """

    def __contains__(self, folder: object) -> bool:
        # fairseq may know the package through a symbolic link beside its own folder.
        is_found = realpath(str(folder)) in map(realpath, self)
        if is_found and "fairseq" in sys.modules:
            register()
        return is_found


def __getattr__(name: str) -> Any:
    """Load a lazy name or a submodule, such as ``luna_fairseq.ops``, on first access."""
    if name in _LAZY_NAMES:
        return getattr(import_module(f"{__name__}.{_LAZY_NAMES[name]}"), name)
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


# fairseq imports an installed package as fairseq/../luna_fairseq, but then looks for the shorter path.
__path__ = _PackagePath(map(abspath, __path__))
if sys.modules.get("fairseq") is not None:
    register()
elif in_command():
    set_up_loggers()
