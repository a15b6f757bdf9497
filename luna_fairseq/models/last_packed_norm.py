"""Final layer norm of Luna's packed sequence P in a sentence encoder.

Masked language modelling does not read P after the last layer, so that its layer norm has no parameters
there. Classification heads read P and need them.
"""

from typing import Dict

from torch import Tensor, nn

from fairseq.modules import LayerNorm


def add_packed_norm_parameters(encoder: nn.Module) -> None:
    """Add a weight and a bias to the final layer norm of Luna's packed sequence P.

    A model calls this function when it gets a classification head that reads P. If a checkpoint has no such
    weight and bias, they keep their initial values.

    Args:
        encoder: :class:`luna_fairseq.models.fairseq_encoder.FairseqLunaEncoder`, modified in place.
    """
    norm = encoder.packed_layer_norm
    if norm is not None and norm.weight is None:
        like = encoder.packed_embedding.weight
        norm = LayerNorm(norm.normalized_shape, export=encoder.cfg.export)
        encoder.packed_layer_norm = norm.to(device=like.device, dtype=like.dtype)
        encoder.packed_is_read_later = True


def adapt_packed_norm(encoder: nn.Module, state_dict: Dict[str, Tensor], prefix: str) -> None:
    """Add, remove or rename the final layer norm of the packed sequence P in a state dict.

    The weight and bias of this norm are removed if the encoder's norm has none. They are added with initial
    values if :func:`add_packed_norm_parameters` has created them and the checkpoint lacks them. The authors'
    code stores them in the last encoder layer; they are renamed.

    Args:
        encoder: :class:`luna_fairseq.models.fairseq_encoder.FairseqLunaEncoder`.
        state_dict: parameters keyed by name, modified in place.
        prefix: prefix of the encoder's parameters.
    """
    layers = f"{prefix}layers."
    depths = [int(name[len(layers) :].split(".")[0]) for name in state_dict if name.startswith(layers)]
    for part in ("weight", "bias"):
        name = f"{prefix}packed_layer_norm.{part}"
        authors_name = f"{layers}{max(depths, default=0)}.packed_layer_norm.{part}"
        if not encoder.cfg.encoder.normalize_before and authors_name in state_dict:
            state_dict[name] = state_dict.pop(authors_name)
        value = getattr(encoder.packed_layer_norm, part)
        if value is None:
            state_dict.pop(name, None)
        elif encoder.packed_is_read_later:
            state_dict.setdefault(name, value)
