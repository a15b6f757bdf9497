"""Bounds of numeric options.

An option declares its bounds in the metadata of its dataclass field, for example ``{"least": 0, "below":
1}``. ``least`` and ``most`` are the smallest and the largest allowed value. ``above`` and ``below`` are not
allowed themselves.
"""

import math
from dataclasses import fields
from typing import Any, Dict, Iterator, Mapping

from luna_fairseq.errors import InputError

LEAST, ABOVE, MOST, BELOW = "least", "above", "most", "below"
# Bounds of the probability of dropping or replacing something, which must be below 1.
PROBABILITY: Dict[str, Any] = {LEAST: 0, BELOW: 1}
# Seeds that numpy accepts.
SEED: Dict[str, Any] = {LEAST: 0, BELOW: 2**32}
# The test and the words for each kind of bound.
_TESTS = {
    LEAST: (lambda value, bound: value >= bound, "at least"),
    ABOVE: (lambda value, bound: value > bound, "above"),
    MOST: (lambda value, bound: value <= bound, "at most"),
    BELOW: (lambda value, bound: value < bound, "below"),
}


def bounds_of(metadata: Mapping[str, Any]) -> Dict[str, float]:
    """Return the bounds in the metadata of a field.

    Args:
        metadata: metadata of a dataclass field.

    Returns:
        Values by the kind of the bound, without bounds that are None.

    Example:
        >>> bounds_of({"help": "dropout probability", "least": 0, "below": 1})
        {'least': 0, 'below': 1}
    """
    return {name: metadata[name] for name in _TESTS if metadata.get(name) is not None}


def describe(bounds: Mapping[str, float]) -> str:
    """Describe bounds in words.

    Args:
        bounds: values by the kind of the bound.

    Returns:
        Text such as "at least 1".

    Example:
        >>> describe({"least": 0, "below": 1})
        'at least 0 and below 1'
    """
    return " and ".join(f"{_TESTS[name][1]} {bound}" for name, bound in bounds.items())


def is_within(value: float, bounds: Mapping[str, float]) -> bool:
    """Return True if a number is finite and within bounds.

    Args:
        value: number to test.
        bounds: values by the kind of the bound.
    """
    return math.isfinite(value) and all(_TESTS[name][0](value, bound) for name, bound in bounds.items())


def faults(options: Mapping[str, Any], dataclass: Any) -> Iterator[str]:
    """Yield an error message for every option that is out of its bounds.

    Args:
        options: values by the name of the option. Each number in a list is checked. Values
            that are not numbers (None, or the name of another option) are not checked.
        dataclass: dataclass whose fields declare the options.

    Yields:
        Error message.
    """
    for field in fields(dataclass):
        bounds, option = bounds_of(field.metadata), options.get(field.name)
        for value in option if isinstance(option, (list, tuple)) else (option,):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if bounds and is_number and not is_within(value, bounds):
                shown = value if isinstance(value, int) else f"{value:g}"
                yield f"--{field.name.replace('_', '-')} {shown}: must be {describe(bounds)}"


def check_bounds(options: Mapping[str, Any], dataclass: Any) -> None:
    """Check that all numeric options are within their bounds.

    Args:
        options: values by the name of the option.
        dataclass: dataclass whose fields declare the options.

    Raises:
        InputError: An option is out of its bounds.
    """
    for fault in faults(options, dataclass):
        raise InputError(fault)
