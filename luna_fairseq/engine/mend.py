"""One change to fairseq's own behaviour, and the decorator that notes it; ``table.mend_fairseq`` makes it.

WHOLE_FILES = Mend("whole-files", RIGHT, "what happens without it", versions="...")

@WHOLE_FILES.around("fairseq.file_io:PathManager.copy")
def copy_whole(copy, src_path, dst_path, overwrite=False):
    ...  # takes the place of PathManager.copy, which is its first argument
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
RUNS = "a, without which fairseq does not run on some of these versions or machines"
RIGHT = "b, without which a result is wrong, or work is lost"
KIND = "c, a kindness"

Function = Callable[..., Any]


@dataclass(eq=False)
class Mend:
    """An entry of the table.

    Args:
        name: what the switch calls it.
        importance: RUNS, RIGHT or KIND.
        reason: what happens without it.
        versions: which versions of fairseq, torch or numpy it is for.
        needed: whether those are underneath.
        changes: target and function of each change.
    """

    name: str
    importance: str
    reason: str
    versions: str = "every version so far"
    needed: Callable[[], bool] = lambda: True
    changes: List[Tuple[str, Function]] = field(default_factory=list)
    state: str = ""

    def around(self, *targets: str) -> Callable[[Function], Function]:
        """Decorate a function that takes the place of each of ``targets``, and is called with the original
        as its first argument; it has to take and pass on all that the original takes.

        Args:
            targets: ``module:attribute`` or ``module:Class.attribute``. What is no function (a module's
                ``np``) becomes what this one returns for it. Without a target it is called once.
        """

        def note(function: Function) -> Function:
            self.changes += [(target, function) for target in targets or ("",)]
            return function

        return note

    def apply(self, left_out: bool = False) -> None:
        """Make the changes, all or none, and set ``state``; a second time changes nothing."""
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
                self._put(owner, name, function)
        self.state = MENDED

    def _put(self, owner: Any, name: str, function: Function) -> None:
        original = getattr(owner, name)
        before = getattr(original, "mended_by", ())
        if self.name in before:  # by another copy of this package
            return
        new: Any = _around(original, function) if callable(original) else function(original)
        new.mended_by = (*before, self.name)
        static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(new) if static else new)


def find(target: str) -> Tuple[Any, str]:
    """The module or class that has ``target``, and its name there; None for a program of fairseq that does
    not run here, and for no target. Raises AttributeError where there is no such thing."""
    module, _, path = target.partition(":")
    *parents, name = path.split(".")
    owner: Any = None
    try:
        if module.startswith("fairseq_cli."):
            main = sys.modules.get("__main__")  # as python -m runs it
            running = getattr(getattr(main, "__spec__", None), "name", None) == module
            owner = main if running else sys.modules.get(module)
        elif module:
            owner = importlib.import_module(module)
        if owner is not None:
            owner = functools.reduce(getattr, parents, owner)
            getattr(owner, name)
    except (ImportError, AttributeError) as error:
        raise AttributeError(f"there is no {target.replace(':', '.')} here ({error})") from None
    return owner, name


def _around(original: Function, function: Function) -> Function:
    # The attributes of a class are not those of what makes its objects.
    updated = () if isinstance(original, type) else ("__dict__",)

    @functools.wraps(original, updated=updated)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    return wrapped
