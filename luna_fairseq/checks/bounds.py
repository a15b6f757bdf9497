"""Bounds of numeric options.

An option declares its bounds in the metadata of its dataclass field, such as ``{"least": 0, "below": 1}``.
The smallest allowed value is ``least`` and the largest is ``most``. Values must also be greater than
``above`` and less than ``below``.
"""

import math
from dataclasses import fields
from typing import Any, Dict, Iterator, Mapping

from luna_fairseq.errors import InputError

LEAST, ABOVE, MOST, BELOW = "least", "above", "most", "below"
# Bounds of the probability of dropping or replacing something, which must be less than 1.
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


def read_bounds(metadata: Mapping[str, Any]) -> Dict[str, float]:
    """Return the bounds in a field's metadata, such as ``{"least": 0, "below": 1}``."""
    return {name: metadata[name] for name in _TESTS if metadata.get(name) is not None}


def describe(bounds: Mapping[str, float]) -> str:
    """Describe bounds in words, such as "at least 0 and below 1"."""
    return " and ".join(f"{_TESTS[name][1]} {bound}" for name, bound in bounds.items())


def is_within(value: float, bounds: Mapping[str, float]) -> bool:
    """Return True if a number is finite and within bounds."""
    return math.isfinite(value) and all(_TESTS[name][0](value, bound) for name, bound in bounds.items())


def find_faults(options: Mapping[str, Any], dataclass: Any) -> Iterator[str]:
    """Yield an error message for each option outside the bounds that its dataclass field declares."""
    for field in fields(dataclass):
        bounds, option = read_bounds(field.metadata), options.get(field.name)
        for value in option if isinstance(option, (list, tuple)) else (option,):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if bounds and is_number and not is_within(value, bounds):
                shown = value if isinstance(value, int) else f"{value:g}"
                yield f"--{field.name.replace('_', '-')} {shown}: must be {describe(bounds)}"


def check_bounds(options: Mapping[str, Any], dataclass: Any) -> None:
    """Raise InputError if a numeric option is outside the bounds that its dataclass field declares."""
    for fault in find_faults(options, dataclass):
        raise InputError(fault)
