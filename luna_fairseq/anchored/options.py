"""Options of anchored attention and related features, without fairseq."""

from typing import Any, NamedTuple

from luna_fairseq.errors import InputError

CROSS_ATTENTIONS = ("luna", "softmax")


class ExtensionOptions(NamedTuple):
    """Options of anchored attention and related features, named like the command-line options.

    ``luna_fairseq/models/options.py`` describes each option.
    """

    anchored_packed: bool = False
    anchor_strength: float = 4.0
    local_parts: int = 0
    cross_attention: str = "luna"
    packed_lookup: int = 0
    diagonal_prior: bool = False
    causal_decay: bool = False


def extension_options(cfg: Any) -> ExtensionOptions:
    """Read the options of anchored attention and related features from a configuration's attributes.

    Raises InputError if an option needs another that is not set, or excludes another that is set.
    """
    defaults = ExtensionOptions()
    values: Any = {name: getattr(cfg, name, value) for name, value in defaults._asdict().items()}
    options = ExtensionOptions(**values)
    needs = {
        "packed_lookup": "a look-up reads the segments of anchored rows",
        "local_parts": "a window consists of the segments of anchored rows",
        "diagonal_prior": "only anchored rows have a distance from the diagonal",
    }
    for name, why in needs.items():
        if getattr(options, name) and not options.anchored_packed:
            raise InputError(f"--{name.replace('_', '-')} needs --anchored-packed: {why}")
    if options.packed_lookup and options.cross_attention == "softmax":
        raise InputError(
            "--packed-lookup and --cross-attention softmax cannot be combined. Use --packed-lookup 0"
        )
    return options
