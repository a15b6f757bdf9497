"""Bounds of numeric options. An option declares its bounds beside its default, in the metadata of its field.

metadata = {"least": 0, "below": 1}  # from 0 to below 1

``least`` and ``most`` are allowed values, ``above`` and ``below`` are not.
"""

import math
from dataclasses import fields
from typing import Any, Dict, Iterator, Mapping

from luna_fairseq.errors import InputError

LEAST, ABOVE, MOST, BELOW = "least", "above", "most", "below"
# Bounds of a probability of dropping or replacing: with 1 nothing would be left.
PROBABILITY: Dict[str, Any] = {LEAST: 0, BELOW: 1}
# Seeds that numpy takes.
SEED: Dict[str, Any] = {LEAST: 0, BELOW: 2**32}
_HOLDS = {
    LEAST: (lambda value, bound: value >= bound, "at least"),
    ABOVE: (lambda value, bound: value > bound, "above"),
    MOST: (lambda value, bound: value <= bound, "at most"),
    BELOW: (lambda value, bound: value < bound, "below"),
}


def bounds_of(metadata: Mapping[str, Any]) -> Dict[str, float]:
    """Return the bounds in the metadata of a field: bound name -> value."""
    return {name: metadata[name] for name in _HOLDS if metadata.get(name) is not None}


def describe(bounds: Mapping[str, float]) -> str:
    """Return bounds in words, such as "at least 0 and below 1"."""
    return " and ".join(f"{_HOLDS[name][1]} {bound}" for name, bound in bounds.items())


def is_within(value: float, bounds: Mapping[str, float]) -> bool:
    """Return True if a number is finite and within bounds."""
    return math.isfinite(value) and all(_HOLDS[name][0](value, bound) for name, bound in bounds.items())


def faults(options: Mapping[str, Any], dataclass: Any) -> Iterator[str]:
    """Yield a sentence for every option of ``dataclass`` whose value is out of its bounds.

    Args:
        options: name -> value. A list is checked number by number. A value that is no number (None, or the
            name of another option) is not checked.
        dataclass: dataclass whose fields declare the options.
    """
    for field in fields(dataclass):
        bounds, several = bounds_of(field.metadata), options.get(field.name)
        for value in several if isinstance(several, (list, tuple)) else (several,):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if bounds and is_number and not is_within(value, bounds):
                shown = value if isinstance(value, int) else f"{value:g}"
                yield f"--{field.name.replace('_', '-')} {shown}: must be {describe(bounds)}"


def check_bounds(options: Mapping[str, Any], dataclass: Any) -> None:
    """Raise InputError for the first option that is out of its bounds; see :func:`faults`."""
    for fault in faults(options, dataclass):
        raise InputError(fault)
