"""Loading: parameter names of the authors' code (fairseq-apollo) become ours, and what does not fit is
refused."""

import re
from contextlib import contextmanager
from typing import Dict, Iterator

from torch import Tensor, nn

from luna_fairseq.errors import InputError

# (their name, our name) of one attention's projections. "pc" is the packed side's key and value, "c" the
# unpacked one's.
_ATTENTION = {
    "pq": "pack_q",
    "q": "unpack_q",
    "pk": "pack_k",
    "pv": "pack_v",
    "k": "unpack_k",
    "v": "unpack_v",
}
_LUNA = {**_ATTENTION, "pc": "pack_kv", "c": "unpack_kv"}
_CAUSAL = {**_ATTENTION, "pc": "pack_k", "c": "unpack_kv"}

_OTHER = {
    "encoder.projected_embeddings": "encoder.packed_embedding.weight",
    "encoder.layernorm_porjected_embedding": "encoder.packed_embedding.layer_norm",
    "encoder.proj_layer_norm": "encoder.packed_layer_norm",
    "encoder.emb_layer_norm": "encoder.layernorm_embedding",
    "encoder.proj_emb_layer_norm": "encoder.packed_embedding.layer_norm",
}
# In masked language models the encoder is one level down.
_SENTENCE_ENCODER = "encoder.sentence_encoder."
_LAYER_NORM = re.compile(r"\.(self_atten|encoder_atten)_proj_layer_norm\.")
_PROJECTION = re.compile(
    r"(?P<side>encoder|decoder)(?P<layer>\.layers\.\d+\.)(?P<kind>self_attn|encoder_attn)\.(?P<old>[a-z]+)_proj\."
)
_HEAD_NORM = re.compile(r"^(classification_heads\.[^.]+)\.layernorm\.")
_THEIRS = "projected_embeddings"


def translate_name(name: str) -> str:
    """Our name for a parameter of the authors' code."""
    if name.startswith(_SENTENCE_ENCODER):
        return (
            _SENTENCE_ENCODER + translate_name("encoder." + name[len(_SENTENCE_ENCODER) :])[len("encoder.") :]
        )
    name = _HEAD_NORM.sub(r"\1.layer_norm.", name)
    for old, new in _OTHER.items():
        if name == old or name.startswith(old + "."):
            return new + name[len(old) :]
    name = _LAYER_NORM.sub(".packed_layer_norm.", name)
    match = _PROJECTION.match(name)
    if match and match["old"] != "out":
        causal = match["side"] == "decoder" and match["kind"] == "self_attn"
        new = (_CAUSAL if causal else _LUNA)[match["old"]]
        return f"{match['side']}{match['layer']}{match['kind']}.{new}_proj.{name[match.end() :]}"
    return name


def translate_names(state_dict: Dict[str, Tensor]) -> None:
    """Rename, in place, the entries of a state dict saved by the authors' code; leave one of ours as it is.

    Their buffer of positions, and the norm of the decoder's last P, which never had a gradient, are dropped.
    Layers and encoder see to the other norms of P.
    """
    if not any(name.endswith(_THEIRS) for name in state_dict):
        return
    for old in list(state_dict):
        value = state_dict.pop(old)
        if not (old.endswith("projected_positions") or old.startswith("decoder.proj_layer_norm.")):
            state_dict[translate_name(old)] = value


def check_dictionary(state_dict: Dict[str, Tensor], model: nn.Module) -> None:
    """Raise InputError when the token embeddings of ``state_dict`` belong to dictionaries of another size."""
    for module, which in (("encoder", "encoder "), ("decoder", "decoder "), ("encoder.sentence_encoder", "")):
        name = f"{module}.embed_tokens.weight"
        if name not in state_dict:
            continue
        theirs = state_dict[name].size(0)
        ours = getattr(model.get_submodule(module).embed_tokens, "num_embeddings", theirs)
        if theirs != ours:
            raise InputError(
                f"the checkpoint's {which}dictionary has {theirs} entries, the data's has {ours}: "
                "use data preprocessed with the dictionaries the model was trained with"
            )


def check_positions(state_dict: Dict[str, Tensor], name: str, positions: nn.Module) -> None:
    """Raise InputError when ``name`` in ``state_dict`` is a table of another number of learned positions."""
    if name in state_dict and state_dict[name].size(0) != positions.num_embeddings:
        surplus = positions.num_embeddings - positions.max_positions
        theirs = state_dict[name].size(0) - surplus
        raise InputError(
            f"the checkpoint has {theirs} positions, the model {positions.max_positions}: give "
            f"--max-positions {theirs}"
        )


@contextmanager
def refuse_misfit() -> Iterator[None]:
    """Raise InputError, naming one of them, in the place of torch's list of parameters that do not fit the
    model."""
    try:
        yield
    except RuntimeError as error:
        # The first line names the class; every other is about missing, unexpected or differently shaped
        # parameters.
        title, *misfits = str(error).splitlines()
        if "loading state_dict" not in title or not misfits:
            raise
        first = misfits[0].strip().rstrip(".")
        raise InputError(
            "the checkpoint is of another architecture than the model: "
            f"{first if len(first) <= 200 else first[:200] + ' ...'}; give the --arch and model options it "
            "was trained with, or train into another --save-dir"
        ) from error
