"""One entry of the table: a change to fairseq, and the decorator that registers it.

    WHOLE_FILES = Mend("whole-files", RIGHT, "A killed run leaves half a checkpoint.")

    @WHOLE_FILES.around("fairseq.file_io:PathManager.copy")
    def copy_whole(copy, src_path, dst_path, overwrite=False):
        ...  # called in place of PathManager.copy, which is its first argument

``table.mend_fairseq`` applies the entries.
"""

import functools
import importlib
import inspect
import logging
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, List, Tuple

logger = logging.getLogger(__name__)

MENDED, NOT_NEEDED, LEFT_OUT, GONE = "mended", "not needed here", "left out", "not possible here"
# Classes of entries.
RUNS = "a: without it fairseq does not run on some supported version or machine"
RIGHT = "b: without it one of our models, tasks or recipes gives a wrong result or loses work"

Function = Callable[..., Any]


@dataclass(eq=False)
class Mend:
    """An entry of the table.

    Args:
        name: name of the entry in LUNA_FAIRSEQ_LEAVE_OUT.
        importance: RUNS or RIGHT.
        prevents: the failure that a user sees without the entry, in one or two sentences.
        versions: versions of fairseq, torch or numpy that need the entry.
        needed: function that returns True if one of these versions is installed.
        changes: pairs of a target and the function that replaces it.
        state: MENDED, NOT_NEEDED, LEFT_OUT or GONE once the entry was applied, "" before.
    """

    name: str
    importance: str
    prevents: str
    versions: str = "every version so far"
    needed: Callable[[], bool] = lambda: True
    changes: List[Tuple[str, Function]] = field(default_factory=list)
    state: str = ""

    def around(self, *targets: str) -> Callable[[Function], Function]:
        """Decorate a function that replaces each of ``targets``.

        The function is called with the original as its first argument. It must accept all arguments of the
        original and pass them on.

        Args:
            targets: ``module:attribute`` or ``module:Class.attribute``. A target that is no function (``np``
                in a module) is replaced by the value that the decorated function returns for it. Without a
                target the function is called once, with no argument.
        """

        def register(function: Function) -> Function:
            self.changes += [(target, function) for target in targets or ("",)]
            return function

        return register

    def apply(self, left_out: bool = False) -> None:
        """Make all changes of the entry, or none, and set ``state``. A second call does nothing."""
        if self.state:
            return
        if left_out or not self.needed():
            self.state = LEFT_OUT if left_out else NOT_NEEDED
            return
        try:
            places = [find(target) for target, _ in self.changes]
        except AttributeError as error:
            self.state = GONE
            logger.warning(f"luna_fairseq leaves out its change {self.name}: {error}")
            return
        for (owner, name), (target, function) in zip(places, self.changes):
            if not target:
                function()
            elif owner is not None:
                self._replace(owner, name, function)
        self.state = MENDED

    def _replace(self, owner: Any, name: str, function: Function) -> None:
        original = getattr(owner, name)
        before = getattr(original, "mended_by", ())
        if self.name in before:  # by another copy of this package
            return
        new: Any = _wrap(original, function) if callable(original) else function(original)
        new.mended_by = (*before, self.name)
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(new) if is_static else new)


def find(target: str) -> Tuple[Any, str]:
    """Return the module or class that owns ``target``, and the name of the attribute.

    The owner is None for an empty target, and for a command of fairseq that this process does not run.

    Raises:
        AttributeError: fairseq has no such attribute.
    """
    module, _, path = target.partition(":")
    *parents, name = path.split(".")
    owner: Any = None
    try:
        if module.startswith("fairseq_cli."):
            main = sys.modules.get("__main__")  # python -m runs the module under this name
            is_main = getattr(getattr(main, "__spec__", None), "name", None) == module
            owner = main if is_main else sys.modules.get(module)
        elif module:
            owner = importlib.import_module(module)
        if owner is not None:
            owner = functools.reduce(getattr, parents, owner)
            getattr(owner, name)
    except (ImportError, AttributeError) as error:
        raise AttributeError(f"there is no {target.replace(':', '.')} here ({error})") from None
    return owner, name


def _wrap(original: Function, function: Function) -> Function:
    # Attributes of a class do not belong to the function that makes its objects.
    updated = () if isinstance(original, type) else ("__dict__",)

    @functools.wraps(original, updated=updated)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    return wrapped
