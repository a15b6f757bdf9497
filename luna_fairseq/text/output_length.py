"""Limit the length of a translation relative to the length of its source."""

from typing import Any, Dict, Mapping

# At most 1.5 tokens per source token, plus 20. fairseq's default limit of 200 tokens would cut long
# translations, and would let the model repeat itself for a long time after a short one.
_BY_SOURCE = {"max_len_a": 1.5, "max_len_b": 20}


def limits_by_source(user_options: Mapping[str, Any]) -> Dict[str, Any]:
    """Return fairseq-generate options that limit the length of a translation.

    The limit is 1.5 tokens per source token plus 20 tokens. fairseq computes it from the longest source
    sentence in the batch.

    Args:
        user_options: options given by the user, keyed by name. Any option that controls the output length
            disables the limit.

    Returns:
        The options ``max_len_a`` and ``max_len_b``, or an empty dictionary if the limit is disabled.

    Example:
        >>> limits_by_source({"beam": 5})
        {'max_len_a': 1.5, 'max_len_b': 20}
        >>> limits_by_source({"max_len_b": 200})
        {}
    """
    return {} if {*_BY_SOURCE, "min_len"} & user_options.keys() else dict(_BY_SOURCE)
