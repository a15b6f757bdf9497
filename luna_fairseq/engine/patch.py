"""Class of a change to fairseq, with decorators for the functions that replace fairseq's functions.

Example::

    WHOLE_FILES = Patch("whole-files", RESULTS, "A killed run leaves half a checkpoint.")

    @WHOLE_FILES.replaces("fairseq.file_io:PathManager.copy")
    def copy_whole(copy, src_path, dst_path, overwrite=False):
        ...  # called in place of PathManager.copy, which is its first argument

:func:`luna_fairseq.engine.table.patch_fairseq` applies all patches.
"""

import functools
import importlib
import inspect
import logging
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, List, Tuple

logger = logging.getLogger(__name__)

# States of a patch.
APPLIED, NOT_NEEDED, LEFT_OUT, IMPOSSIBLE = "applied", "not needed here", "left out", "not possible here"
# Classes of patches.
RUNS = "a: without it fairseq does not run on some supported version or machine"
RESULTS = "b: without it one of our models, tasks or recipes gives a wrong result or loses work"

Function = Callable[..., Any]


@dataclass(eq=False)
class Patch:
    """One change to fairseq, which may replace several functions.

    Args:
        name: name of the patch in LUNA_FAIRSEQ_LEAVE_OUT.
        importance: class of the patch, RUNS or RESULTS.
        prevents: failure that users see without the patch, in one or two sentences.
        versions: versions of fairseq, torch or numpy that need the patch (default: all).
        is_needed: function that returns True if one of these versions is installed (default: always True).
        replacements: pairs of a target and the function that replaces the target. A function that is called
            once has the target "" (default: none; the decorators add pairs).
        state: "" before :meth:`apply`, and APPLIED, NOT_NEEDED, LEFT_OUT or IMPOSSIBLE afterwards.
    """

    name: str
    importance: str
    prevents: str
    versions: str = "every version so far"
    is_needed: Callable[[], bool] = lambda: True
    replacements: List[Tuple[str, Function]] = field(default_factory=list)
    state: str = ""

    def replaces(self, *targets: str) -> Callable[[Function], Function]:
        """Return a decorator for a function that replaces functions of fairseq.

        The replacement is called with the original function as its first argument. It must accept all other
        arguments of the original, and pass them on.

        Args:
            targets: names such as ``module:function`` or ``module:Class.method``. For a target that is not
                callable, such as ``np`` in a module, the replacement is called once with the value and
                returns the new value.
        """

        def register(function: Function) -> Function:
            self.replacements += [(target, function) for target in targets]
            return function

        return register

    def at_import(self, function: Function) -> Function:
        """Decorate a function without arguments that is called once, when the patch is applied."""
        self.replacements.append(("", function))
        return function

    def apply(self, leave_out: bool = False) -> None:
        """Make all replacements, and set ``state``. A second call does nothing.

        If fairseq does not have one of the targets, nothing is replaced, and a warning names the target.

        Args:
            leave_out: make no replacements (default: False).
        """
        if self.state:
            return
        if leave_out or not self.is_needed():
            self.state = LEFT_OUT if leave_out else NOT_NEEDED
            return
        try:
            places = [find(target) for target, _ in self.replacements]
        except AttributeError as error:
            self.state = IMPOSSIBLE
            logger.warning(f"luna_fairseq does not make its change {self.name} to fairseq: {error}")
            return
        for (owner, name), (target, function) in zip(places, self.replacements):
            if not target:
                function()
            elif owner is not None:
                self._replace(owner, name, function)
        self.state = APPLIED

    def _replace(self, owner: Any, name: str, function: Function) -> None:
        """Replace an attribute of a module or class, unless another copy of this package has replaced it.

        Args:
            owner: module or class.
            name: name of the attribute.
            function: replacement. If the attribute is callable, this function gets the original as its first
                argument. Otherwise it maps the old value to the new one.
        """
        original = getattr(owner, name)
        earlier = getattr(original, "patched_by", ())
        if self.name in earlier:
            return
        new: Any = _wrap(original, function) if callable(original) else function(original)
        new.patched_by = (*earlier, self.name)
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(new) if is_static else new)


def find(target: str) -> Tuple[Any, str]:
    """Find the attribute that a target names.

    Args:
        target: name such as ``module:Class.method``, see :meth:`Patch.replaces`.

    Returns:
        The module or class that has the attribute, and the name of the attribute. The owner is None for an
        empty target, and for a command of fairseq that this process does not run.

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
        raise AttributeError(f"{target.replace(':', '.')} does not exist ({error})") from None
    return owner, name


def _wrap(original: Function, function: Function) -> Function:
    """Return a function with the original's name that calls ``function`` with the original first.

    Args:
        original: function to replace.
        function: function that gets ``original`` and the arguments of the call.
    """
    # The attributes of a class do not belong to the function that replaces the class.
    updated = () if isinstance(original, type) else ("__dict__",)

    @functools.wraps(original, updated=updated)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    return wrapped
