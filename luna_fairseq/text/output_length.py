"""Length limits of translations, relative to the source length."""

from typing import Any, Dict, Mapping

# At most 1.5 tokens per source token, plus 20. fairseq's default limit of 200 tokens would cut long
# translations, and would let the model repeat itself for a long time after a short one.
_BY_SOURCE = {"max_len_a": 1.5, "max_len_b": 20}


def limits_by_source(user_options: Mapping[str, Any]) -> Dict[str, Any]:
    """Return fairseq-generate's options that limit translations to 1.5 tokens per source token plus 20.

    The result is empty if the user gives an option that controls the output length.
    """
    return {} if {*_BY_SOURCE, "min_len"} & user_options.keys() else dict(_BY_SOURCE)
