"""Final layer norm of Luna's packed sequence P in a sentence encoder.

Masked language modeling does not use P after the last layer, so the final layer norm of P has no parameters.
Classification heads use P and need these parameters.
"""

from typing import Dict

from torch import Tensor, nn

from fairseq.modules import LayerNorm


def add_packed_norm_parameters(encoder: nn.Module) -> None:
    """Add a weight and a bias to the final layer norm of Luna's packed sequence P.

    Called when a classification head that uses P is added to a model. If a checkpoint lacks the weight and
    bias, they keep their initial values.

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

    The weight and bias of this norm are removed if the encoder's norm has none. They are added with their
    initial values if :func:`add_packed_norm_parameters` has created them and the checkpoint lacks them. If
    they are stored in the last encoder layer, as in the authors' code, they are renamed.

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
