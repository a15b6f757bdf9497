"""Convert parameter names in checkpoints from the code of Luna's authors (fairseq-apollo)."""

import re
from typing import Dict

from torch import Tensor

# Names of the attention projections in the authors' code and in this project. "pc" projects tied keys and
# values for pack attention, and "c" for unpack attention.
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
# In masked language models, the encoder is nested in another module.
_SENTENCE_ENCODER = "encoder.sentence_encoder."
_LAYER_NORM = re.compile(r"\.(self_atten|encoder_atten)_proj_layer_norm\.")
_PROJECTION = re.compile(
    r"(?P<side>encoder|decoder)(?P<layer>\.layers\.\d+\.)(?P<kind>self_attn|encoder_attn)\.(?P<old>[a-z]+)_proj\."
)
_HEAD_NORM = re.compile(r"^(classification_heads\.[^.]+)\.layernorm\.")
# Only the authors' checkpoints contain this parameter.
_AUTHORS_ONLY = "projected_embeddings"


def translate_name(name: str) -> str:
    """Convert a parameter name from the Luna authors' code to the name in this package.

    Names that are equal in both are returned unchanged.

    Example:
        >>> translate_name("encoder.layers.0.self_attn.pq_proj.weight")
        'encoder.layers.0.self_attn.pack_q_proj.weight'
    """
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
    """Rename the parameters in a state dict saved by the Luna authors' code (fairseq-apollo), in place.

    Two entries without a counterpart are removed: the position embeddings of the packed sequence P, and a
    decoder layer norm that receives no gradient. Other state dicts remain unchanged.
    """
    if not any(name.endswith(_AUTHORS_ONLY) for name in state_dict):
        return
    for old in list(state_dict):
        value = state_dict.pop(old)
        if not (old.endswith("projected_positions") or old.startswith("decoder.proj_layer_norm.")):
            state_dict[translate_name(old)] = value
