"""Class :class:`Patch`, which replaces functions of fairseq with functions of this package.

Example::

    WHOLE_FILES = Patch("whole-files", RESULTS, "A killed run leaves half a checkpoint.")

    @WHOLE_FILES.replaces("fairseq.file_io:PathManager.copy")
    def copy_whole(copy, src_path, dst_path, overwrite=False):
        ...  # called in place of PathManager.copy, which is passed as ``copy``

:func:`luna_fairseq.engine.table.patch_fairseq` applies all patches.
"""

import functools
import importlib
import inspect
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

logger = logging.getLogger(__name__)

# Patch states.
APPLIED, NOT_NEEDED, LEFT_OUT, IMPOSSIBLE = "applied", "not needed here", "left out", "not possible here"
# Patch classes.
RUNS = "a: without it fairseq does not run on some supported version or machine"
RESULTS = "b: without it one of our models, tasks or recipes gives a wrong result or loses work"

Function = Callable[..., Any]


@dataclass(eq=False)
class Patch:
    """Change to fairseq, which may replace several of its functions.

    Attributes:
        name: name with which the environment variable LUNA_FAIRSEQ_LEAVE_OUT can disable the patch.
        importance: reason for the patch. RUNS: fairseq would not run. RESULTS: results would be wrong or
            lost.
        prevents: failure that users would see without the patch, in one or two sentences.
        versions: versions of fairseq, torch or NumPy that need the patch (default: all).
        is_needed: function that returns True if such a version is installed (default: always True).
        replacements: pairs (target, function), which the decorators add. The target names the attribute that
            the function replaces. If the target is "", the function is called once.
        state: "" before :meth:`apply`; APPLIED, NOT_NEEDED, LEFT_OUT or IMPOSSIBLE afterwards.
    """

    name: str
    importance: str
    prevents: str
    versions: str = "every version so far"
    is_needed: Callable[[], bool] = lambda: True
    replacements: List[Tuple[str, Function]] = field(default_factory=list)
    state: str = ""

    def replaces(self, *targets: str) -> Callable[[Function], Function]:
        """Return a decorator that registers a function as the replacement for one or more fairseq functions.

        The replacement receives the original function as its first argument, followed by the call's
        arguments. It must accept all arguments of the original and pass them on.

        Args:
            targets: names ``module:function`` or ``module:Class.method``. If a target is not a callable (such
                as ``np`` in a module), the replacement maps the old value to the new value.

        Returns:
            The decorator. It returns the function unchanged.
        """

        def register(function: Function) -> Function:
            self.replacements += [(target, function) for target in targets]
            return function

        return register

    def at_import(self, function: Function) -> Function:
        """Decorator for a function without arguments, which is called once, when the patch is applied."""
        self.replacements.append(("", function))
        return function

    def apply(self, leave_out: bool = False) -> None:
        """Replace the registered fairseq functions, and set the attribute ``state``.

        Nothing is replaced if ``leave_out`` is True (the user has disabled the patch), if the installed
        versions do not need the patch, or, with a warning, if fairseq lacks one of the functions. A second
        call has no effect.
        """
        if self.state:
            return
        if leave_out or not self.is_needed():
            self.state = LEFT_OUT if leave_out else NOT_NEEDED
            return
        try:
            owners = [find_target(target) for target, _ in self.replacements]
        except AttributeError as error:
            self.state = IMPOSSIBLE
            logger.warning(f"luna_fairseq does not make its change {self.name} to fairseq: {error}")
            return
        for (owner, name), (target, function) in zip(owners, self.replacements):
            if not target:
                function()
            elif owner is not None:
                self._replace(owner, name, function)
        self.state = APPLIED

    def _replace(self, owner: Any, name: str, function: Function) -> None:
        """Replace an attribute of a module or class, such as a function, with a wrapper or a new value.

        If the attribute is callable, the wrapper calls ``function(original, *args, **kwargs)``. Otherwise,
        the new value is ``function(value)``. If another copy of luna_fairseq has already applied this patch,
        nothing is changed.
        """
        original = getattr(owner, name)
        earlier = getattr(original, "patched_by", ())
        if self.name in earlier:
            return
        new: Any = _wrap(original, function) if callable(original) else function(original)
        new.patched_by = (*earlier, self.name)
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(new) if is_static else new)
        for namespace in _spawned_namespaces(owner):
            namespace[name] = new


def find_target(target: str) -> Tuple[Any, str]:
    """Find the fairseq attribute that a patch replaces. Return its owner and its name.

    For "fairseq.trainer:Trainer.clip_grad_norm", the result is (class Trainer, "clip_grad_norm"). The owner
    is None if the target is empty or belongs to a fairseq command that this process does not run. Raises
    AttributeError if fairseq has no such attribute.
    """
    module, _, path = target.partition(":")
    *parents, name = path.split(".")
    owner: Any = None
    try:
        if module.startswith("fairseq_cli."):
            # A command that is run by python -m, or by the path of its file, has the module name __main__.
            main = sys.modules.get("__main__")
            is_main = getattr(getattr(main, "__spec__", None), "name", None) == module
            file = Path(getattr(main, "__file__", None) or "").absolute()
            is_main = is_main or file.parts[-2:] == ("fairseq_cli", f"{module.split('.')[1]}.py")
            owner = main if is_main else sys.modules.get(module)
        elif module:
            owner = importlib.import_module(module)
        if owner is not None:
            owner = functools.reduce(getattr, parents, owner)
            getattr(owner, name)
    except (ImportError, AttributeError) as error:
        raise AttributeError(f"{target.replace(':', '.')} does not exist ({error})") from None
    return owner, name


def _spawned_namespaces(owner: Any) -> List[Dict[str, Any]]:
    """Return the other namespaces in which a function of a spawned process's main module must be replaced.

    Multiprocessing runs the main module in a separate namespace, and copies its functions to the module
    ``owner``. The functions still use the globals of that namespace. For any other module, return [].
    """
    if getattr(owner, "__name__", "") != "__mp_main__":
        return []
    functions = filter(inspect.isfunction, list(vars(owner).values()))
    globals_of = {id(each.__globals__): each.__globals__ for each in functions}
    return [names for names in globals_of.values() if names.get("__name__") == "__mp_main__"]


def _wrap(original: Function, function: Function) -> Function:
    """Return a function that calls ``function`` with ``original`` as an additional first argument."""
    # The attributes of a class must not be copied to the function that replaces the class.
    updated = () if isinstance(original, type) else ("__dict__",)

    @functools.wraps(original, updated=updated)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    return wrapped
