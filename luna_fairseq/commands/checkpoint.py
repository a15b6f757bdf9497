"""Function that reads an option from the configuration of a checkpoint."""

import argparse
from typing import Any


def option_of(config: Any, name: str) -> Any:
    """Return an option of a checkpoint's configuration, or None if the option is missing.

    Args:
        config: configuration in fairseq's old form (a namespace) or new form (a mapping).
        name: name of the option.
    """
    # get() raises for a missing option in omegaconf 2.0.
    if name not in config:
        return None
    return getattr(config, name) if isinstance(config, argparse.Namespace) else config[name]
