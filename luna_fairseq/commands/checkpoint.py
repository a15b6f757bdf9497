"""Read options from the configuration of a checkpoint."""

import argparse
from typing import Any


def option_of(config: Any, name: str) -> Any:
    """Return an option of a checkpoint's configuration, in fairseq's old or new form, or None if missing."""
    if name not in config:  # asked first: get() of omegaconf 2.0 raises
        return None
    return getattr(config, name) if isinstance(config, argparse.Namespace) else config[name]
