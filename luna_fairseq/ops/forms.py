"""Tables of the equal implementations (forms) of an operation, and the rules that select one.

The tables stand in ``ops/attention.py``, ``ops/absorbed.py`` and ``ops/causal_luna/``, and those of the
extension beside its look-up. A rule reads shapes, devices, data types, modes and the kinds of layers, never a
clock. Equal seeds and all processes of a job therefore take the same form.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Optional


def otherwise(*inputs: Any) -> bool:
    """Return True for any inputs. This is the condition of the last implementation in a table."""
    return True


@dataclass(frozen=True)
class Form:
    """One implementation of an operation. All forms of an operation give the same results up to rounding.

    Attributes:
        name: name by which the form can be forced.
        file: file of the implementation, in ``luna_fairseq/``.
        condition: inputs for which the form is chosen, in words.
        saves: what the form was measured to save, or what it is for.
        applies: the same condition as a function of the inputs passed to :meth:`FormTable.choose`, True if
            the form is chosen.
        possible: function of the same inputs, False if the form cannot compute them even if it is forced.
    """

    name: str
    file: str
    condition: str
    saves: str
    applies: Callable[..., bool]
    possible: Callable[..., bool] = otherwise


def never(*inputs: Any) -> bool:
    """Return False for any inputs. This is the condition of an implementation that must be forced."""
    return False


class FormTable:
    """Equal implementations ("forms") of one operation, in the order in which their conditions are tried.

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
        """Return the name of the form that is forced, or None."""
        return None if self._forced is None else self._forced.name

    def choose(self, *inputs: Any, form: Optional[str] = None) -> str:
        """Return the name of the implementation to use for these inputs: the first whose condition holds.

        The argument ``form`` takes precedence, and then the form given to :meth:`force`, if it supports these
        inputs. Raises ValueError if no condition holds.
        """
        if form is not None:
            name = self.find(form).name
        elif self._forced is not None and self._forced.possible(*inputs):
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
        """Return the form with this name, or raise a ValueError that lists the names of the table."""
        for form in self.forms:
            if form.name == name:
                return form
        names = ", ".join(form.name for form in self.forms)
        raise ValueError(f"Expected one of {names} as form of {self.operation}, got {name!r}.")

    @contextmanager
    def force(self, name: Optional[str]) -> Iterator[List[str]]:
        """Context manager in which one implementation is used wherever it is possible, by all threads.

        It returns a list, to which the name of each form that is taken is appended. With None in place of a
        name, forms are chosen as usual. Meant for tests and measurements.
        """
        before = self._forced, self._taken
        self._forced, self._taken = None if name is None else self.find(name), []
        try:
            yield self._taken
        finally:
            self._forced, self._taken = before
