"""Loading: parameter names of the authors' code (fairseq-apollo) become ours, and what does not fit is refused."""

import re
from contextlib import contextmanager
from typing import Dict, Iterator

from torch import Tensor, nn

from luna_fairseq.errors import InputError

# (their name, our name) of one attention's projections. "pc" is the packed side's key and value, "c" the unpacked one's.
_ATTENTION = {"pq": "pack_q", "q": "unpack_q", "pk": "pack_k", "pv": "pack_v", "k": "unpack_k", "v": "unpack_v"}
_LUNA = {**_ATTENTION, "pc": "pack_kv", "c": "unpack_kv"}
_CAUSAL = {**_ATTENTION, "pc": "pack_k", "c": "unpack_kv"}

_OTHER = {
    "encoder.projected_embeddings": "encoder.packed_embedding.weight",
    "encoder.layernorm_porjected_embedding": "encoder.packed_embedding.layer_norm",
    "encoder.proj_layer_norm": "encoder.packed_layer_norm",
}
_LAYER_NORM = re.compile(r"\.(self_atten|encoder_atten)_proj_layer_norm\.")
_PROJECTION = re.compile(r"(?P<side>encoder|decoder)(?P<layer>\.layers\.\d+\.)(?P<kind>self_attn|encoder_attn)\.(?P<old>[a-z]+)_proj\.")
_THEIRS = "encoder.projected_embeddings"


def translate_name(name: str) -> str:
    """Our name for a parameter of the authors' code."""
    for old, new in _OTHER.items():
        if name == old or name.startswith(old + "."):
            return new + name[len(old) :]
    name = _LAYER_NORM.sub(".packed_layer_norm.", name)
    match = _PROJECTION.match(name)
    if match and match["old"] != "out":
        causal = match["side"] == "decoder" and match["kind"] == "self_attn"
        new = (_CAUSAL if causal else _LUNA)[match["old"]]
        return f"{match['side']}{match['layer']}{match['kind']}.{new}_proj.{name[match.end():]}"
    return name


def translate_names(state_dict: Dict[str, Tensor], model: nn.Module) -> None:
    """Rename, in place, the entries of a state dict saved by the authors' code; leave one of ours as it is.

    Their buffer of positions, and norms of P that never had a gradient and that ``model`` does not have, are dropped.
    """
    if _THEIRS not in state_dict:
        return
    ours = model.state_dict().keys()
    for old in list(state_dict):
        new = translate_name(old)
        value = state_dict.pop(old)
        unused_norm = new not in ours and new.rsplit(".", 1)[0].endswith(("packed_layer_norm", "proj_layer_norm"))
        if not (old == "encoder.projected_positions" or unused_norm):
            state_dict[new] = value


def check_dictionary(state_dict: Dict[str, Tensor], model: nn.Module) -> None:
    """Raise InputError when the token embeddings of ``state_dict`` belong to dictionaries of another size."""
    for side in ("encoder", "decoder"):
        name = f"{side}.embed_tokens.weight"
        if name not in state_dict:
            continue
        theirs, ours = state_dict[name].size(0), model.get_submodule(side).embed_tokens.num_embeddings
        if theirs != ours:
            raise InputError(
                f"the checkpoint's {side} dictionary has {theirs} entries, the data's has {ours}: "
                "use data preprocessed with the dictionaries the model was trained with"
            )


@contextmanager
def refuse_misfit() -> Iterator[None]:
    """Raise InputError, naming one of them, in the place of torch's list of parameters that do not fit the model."""
    try:
        yield
    except RuntimeError as error:
        # The first line names the class; every other is about missing, unexpected or differently shaped parameters.
        title, *misfits = str(error).splitlines()
        if "loading state_dict" not in title or not misfits:
            raise
        first = misfits[0].strip().rstrip(".")
        raise InputError(
            "the checkpoint is of another architecture than the model: "
            f"{first if len(first) <= 200 else first[:200] + ' ...'}; give the --arch and model options it was "
            "trained with, or train into another --save-dir"
        ) from error
