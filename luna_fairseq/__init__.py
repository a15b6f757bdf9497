"""Luna: Linear Unified Nested Attention (Ma et al., NeurIPS 2021) as a fairseq plugin.

Importing this package imports neither torch nor fairseq, so that ``luna_fairseq.ops``,
``luna_fairseq.optim.apollo`` and ``luna_fairseq.modules`` need torch alone. :func:`register` makes the
models, tasks and other components known to fairseq. It is called in three cases:

* fairseq has been imported before this package, as in fairseq's commands with ``--user-dir luna_fairseq``;
* fairseq looks for its ``--user-dir`` after a program has imported this package for another purpose;
* ``luna_fairseq.models`` is imported, also through ``from luna_fairseq import LunaModel``.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from os.path import abspath, realpath
from typing import Any, List

from luna_fairseq.command_errors import is_command, make_excepthook
from luna_fairseq.loggers import set_up_loggers

__version__ = "0.2.0"

# Names loaded on first access, because their module needs fairseq, mapped to that module.
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
    """Register all models, tasks and other components with fairseq. A second call changes nothing."""
    for name in _REGISTERING:
        import_module(f"{__name__}.{name}")


class _PackagePath(List[str]):
    """``__path__`` of this package, a list that registers all components when fairseq searches it.

    fairseq does not import a package twice. If a program has imported this package before fairseq, for
    example for ``luna_fairseq.ops``, fairseq only tests ``user_dir in luna_fairseq.__path__``.
    """

    def __contains__(self, folder: object) -> bool:
        # fairseq may know the package through a symbolic link beside its own folder.
        is_found = realpath(str(folder)) in map(realpath, self)
        if is_found and "fairseq" in sys.modules:
            register()
        return is_found


def __getattr__(name: str) -> Any:
    """Import a submodule such as ``luna_fairseq.ops``, or a class such as ``LunaModel``, on first access."""
    if name in _LAZY_NAMES:
        return getattr(import_module(f"{__name__}.{_LAZY_NAMES[name]}"), name)
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


# fairseq imports an installed package as fairseq/../luna_fairseq, but then looks for the shorter path.
__path__ = _PackagePath(map(abspath, __path__))
if sys.modules.get("fairseq") is not None:
    register()
elif is_command():
    set_up_loggers()
    sys.excepthook = make_excepthook(sys.excepthook)  # a command whose packages are missing says so in a line
