"""Tables of equivalent implementations of an operation ("forms"), and the rules that select one.

Each table is defined next to its operation. A rule reads shapes, devices, data types, modes and layer types,
never measured times. Runs with equal seeds, and all processes of a job, therefore use the same
implementation.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Optional


def otherwise(*inputs: Any) -> bool:
    """Return True for all inputs, as the condition of the last implementation in a table."""
    return True


@dataclass(frozen=True)
class Form:
    """One implementation of an operation. All implementations give the same results up to rounding.

    Attributes:
        name: name with which :meth:`FormTable.force` selects the implementation.
        condition: description of the inputs for which the implementation is chosen.
        saves: description of the measured savings, or of the purpose of the implementation.
        applies: function that returns True if the condition holds for the inputs of :meth:`FormTable.choose`.
        possible: function of the same inputs that returns False if the implementation does not support them.
    """

    name: str
    condition: str
    saves: str
    applies: Callable[..., bool]
    possible: Callable[..., bool] = otherwise


def never(*inputs: Any) -> bool:
    """Return False for all inputs, as the condition of an implementation that is used only if forced."""
    return False


class FormTable:
    """Table of equivalent implementations of one operation ("forms"), whose conditions are tried in order.

    Example:
        >>> from luna_fairseq.ops.attention import SOFTMAX_FORMS
        >>> [form.name for form in SOFTMAX_FORMS.forms]
        ['matmul', 'fused', 'naive']
        >>> with SOFTMAX_FORMS.force("naive") as taken:
        ...     pass  # calls of the operation, which append the name of each form that is taken
    """

    def __init__(self, operation: str, *forms: Form):
        self.operation = operation
        self.forms = forms
        self._forced: Optional[Form] = None
        self._taken: Optional[List[str]] = None

    def forced(self) -> Optional[str]:
        """Return the name of the implementation selected with :meth:`force`, or None."""
        return None if self._forced is None else self._forced.name

    def choose(self, *inputs: Any, form: Optional[str] = None) -> str:
        """Return the name of the implementation to use for these inputs.

        If ``form``, the name of an implementation, is given, it is returned even if that implementation does
        not support the inputs. Otherwise, the implementation selected with :meth:`force` is chosen if it
        supports the inputs. By default, the first implementation whose condition holds is chosen. Raise
        ValueError if no implementation has the name ``form``, or if no condition holds.
        """
        if form is not None:
            return self.find(form).name
        if self._forced is not None and self._forced.possible(*inputs):
            name = self._forced.name
        else:
            for each in self.forms:
                if each.applies(*inputs):
                    name = each.name
                    break
            else:
                raise ValueError(f"No form of {self.operation} can compute these inputs.")
        if self._taken is not None:
            self._taken.append(name)
        return name

    def find(self, name: str) -> Form:
        """Return the implementation with the given name. Raise ValueError if the name is unknown."""
        for form in self.forms:
            if form.name == name:
                return form
        names = ", ".join(form.name for form in self.forms)
        raise ValueError(f"Expected one of {names} as form of {self.operation}, got {name!r}.")

    @contextmanager
    def force(self, name: Optional[str]) -> Iterator[List[str]]:
        """Context manager in which all threads use one implementation for all inputs that it supports.

        The context manager is meant for tests and measurements. It yields a list to which each call of the
        operation appends the name of its implementation. Calls that name an implementation themselves do not
        count. If ``name`` is None, implementations are chosen as usual.
        """
        outer = self._forced, self._taken
        self._forced, self._taken = None if name is None else self.find(name), []
        try:
            yield self._taken
        finally:
            self._forced, self._taken = outer
