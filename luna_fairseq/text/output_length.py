"""How long a translation may become."""

from typing import Any, Dict, Mapping

# At most 1.5 tokens for each source token, and 20 more. fairseq's own limit of 200 tokens cuts long
# translations, and lets a short one that repeats itself go on up to there.
_BY_SOURCE = {"max_len_a": 1.5, "max_len_b": 20}


def limits_by_source(given: Mapping[str, Any]) -> Dict[str, Any]:
    """Return options of fairseq's generator that bound a translation by the length of its source, counted as
    the length of the longest source in the batch.

    Args:
        given: options that the user gave; if one of them is about length, no option is returned
    """
    return {} if {*_BY_SOURCE, "min_len"} & given.keys() else dict(_BY_SOURCE)
