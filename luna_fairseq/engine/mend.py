"""One change to fairseq's own behaviour, and the decorator by which it is made.

    WHOLE_FILES = Mend("whole-files", RIGHT, what="...", why="...", versions="...")

    @WHOLE_FILES.around("fairseq.file_io:PathManager.copy")
    def copy_whole(copy, src_path, dst_path, overwrite=False):
        ...  # takes the place of PathManager.copy, which is its first argument

The decorator only notes it; ``table.mend_fairseq`` makes the changes, in the order of the table.
"""

import functools
import importlib
import inspect
import logging
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

logger = logging.getLogger(__name__)

MENDED, NOT_NEEDED, LEFT_OUT, GONE = "mended", "not needed here", "left out", "not possible here"
# Classes of entries.
RUNS = "a, without which fairseq does not run on some of these versions or machines"
RIGHT = "b, without which a result is wrong, or work is lost"
KIND = "c, a kindness"


def _everywhere() -> bool:
    return True


@dataclass(eq=False)
class Mend:
    """An entry of the table.

    Args:
        name: what the switch calls it.
        importance: RUNS, RIGHT or KIND.
        what: what fairseq does with it, a sentence without a subject.
        why: what happens without it.
        versions: which versions of fairseq, torch or numpy it is for.
        needed: whether those are underneath; default: every version is meant.
    """

    name: str
    importance: str
    what: str
    why: str
    versions: str = "every version so far"
    needed: Callable[[], bool] = _everywhere
    changes: List[Tuple[str, Callable[..., Any]]] = field(default_factory=list)
    state: str = ""

    def around(self, *targets: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorate a function that takes the place of each of ``targets``.

        Args:
            targets: ``module:attribute`` or ``module:Class.attribute``. A function of that name is from
                then on this one, called with the original as its first argument, and has to take and pass
                on all that the original takes. Anything else (a module's
                ``np``) is what this one returns for the original. Without a target it is called once.
                One entry changes a target once.
        """

        def note(function: Callable[..., Any]) -> Callable[..., Any]:
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
        places = []
        for target, _ in self.changes:
            try:
                places.append(_find(target))
            except (ImportError, AttributeError) as error:
                self.state = GONE
                text = f"luna_fairseq leaves out its change {self.name}: there is no {{}} here ({error})"
                logger.warning(text.format(target.replace(":", ".")))
                return
        for (target, function), place in zip(self.changes, places):
            if not target:
                function()
            elif place is not None and self.name not in getattr(place.value, "mended_by", ()):
                place.put(self._replacement(place.value, function))
        self.state = MENDED

    def _replacement(self, original: Any, function: Callable[..., Any]) -> Any:
        replacement: Any = _wrapped(original, function) if callable(original) else function(original)
        replacement.mended_by = (*getattr(original, "mended_by", ()), self.name)
        return replacement


class _Place(NamedTuple):
    owner: Any
    name: str
    value: Any
    static: bool

    def put(self, value: Any) -> None:
        setattr(self.owner, self.name, staticmethod(value) if self.static else value)


def _find(target: str) -> Optional[_Place]:
    """Where ``target`` is; None for a program of fairseq that does not run here, and for no target."""
    module, _, path = target.partition(":")
    if not module:
        return None
    owner = _program(module) if module.startswith("fairseq_cli.") else importlib.import_module(module)
    if owner is None:
        return None
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    value = inspect.getattr_static(owner, name)
    static = isinstance(value, staticmethod)
    return _Place(owner, name, value.__func__ if static else value, static)


def _program(module: str) -> Any:
    """The module as it runs: ``python -m`` calls it __main__."""
    main = sys.modules.get("__main__")
    runs = getattr(getattr(main, "__spec__", None), "name", None) == module
    return main if runs else sys.modules.get(module)


def _wrapped(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    # The attributes of a class are not those of what makes its objects.
    updated = () if isinstance(original, type) else ("__dict__",)

    @functools.wraps(original, updated=updated)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    return wrapped
