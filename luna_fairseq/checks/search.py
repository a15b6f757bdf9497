"""What a beam search cannot do with a batch, found before it begins."""

from typing import Any, Mapping, Optional

from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.loggers import warn_once


def check_search(generator: Any, sample: Mapping[str, Any], prefix: Optional[Tensor]) -> None:
    """Look at fairseq's ``generator`` (SequenceGenerator), a batch, and what its outputs are to begin with
    (tokens [sentences, length], padded on the right). Raises InputError where an output of a model of ours
    would be cut within its prefix, or samples are drawn from more tokens than the dictionary has."""
    candidates = getattr(generator.search, "sampling_topk", 0)
    if candidates > generator.vocab_size:
        raise InputError(f"--sampling-topk {candidates}: the dictionary has {generator.vocab_size} entries")
    if prefix is None or generator.match_source_len:
        return
    width = sample["net_input"]["src_tokens"].size(1)
    longest = min(int(generator.max_len_a * width + generator.max_len_b), generator.max_len - 1)
    length = int(prefix.ne(generator.pad).sum(dim=1).max())
    if length > longest:
        said = f"a prompt has {length} tokens, and no output may be longer than {longest}"
        if not any(type(model).__module__.startswith("luna_fairseq") for model in generator.model.models):
            warn_once(f"{said}: fairseq cuts prompts there")  # its own models run as they do without us
            return
        raise InputError(
            f"{said}: give a larger --max-len-b, or a shorter prompt (the model reads up to "
            f"{generator.max_len} tokens)"
        )
