"""Function that reads an option from the configuration of a checkpoint."""

import argparse
from typing import Any


def get_option(config: Any, name: str) -> Any:
    """Return the value of an option in a checkpoint's configuration, or None if the option is missing."""
    # get() raises for a missing option in omegaconf 2.0.
    if name not in config:
        return None
    return getattr(config, name) if isinstance(config, argparse.Namespace) else config[name]
