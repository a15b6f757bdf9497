"""What counts as equal: nothing is timed that computes something else than it should."""

from torch import Tensor

from luna_fairseq.errors import InputError


def require_equal(name: str, difference: str, error: float, tolerance: float = 1e-4) -> None:
    """Raise InputError when an error is beyond the tolerance, or NaN.

    Args:
        name: of the row
        difference: what differs from what
        error: relative RMS
        tolerance: the largest that is allowed
    """
    if not error <= tolerance:
        raise InputError(
            f"{name} is not timed because it is wrong: {difference} by {error:.1e} "
            f"(relative RMS, {tolerance:.0e} is allowed)"
        )


def relative_rms(actual: Tensor, expected: Tensor) -> float:
    """RMS of the difference over that of the expected values; NaN where either has one."""
    difference = (actual.double() - expected.double()).norm()
    return (difference / expected.double().norm()).item()
