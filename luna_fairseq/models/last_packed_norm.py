"""Layer norm of the last packed sequence P of a sentence encoder."""

from typing import Dict

from torch import Tensor, nn

from fairseq.modules import LayerNorm


def read_packed(encoder: nn.Module) -> None:
    """Add a gain and a bias to the layer norm of the last packed sequence P, for a new classification head.

    The gain and the bias keep their initial values if a checkpoint without them is loaded.

    Args:
        encoder: :class:`luna_fairseq.models.fairseq_encoder.FairseqLunaEncoder`, changed in place.
    """
    norm = encoder.packed_layer_norm
    if norm is not None and norm.weight is None:
        like = encoder.packed_embedding.weight
        norm = LayerNorm(norm.normalized_shape, export=encoder.cfg.export)
        encoder.packed_layer_norm = norm.to(device=like.device, dtype=like.dtype)
        encoder.packed_is_read_later = True


def find_packed_norm(encoder: nn.Module, state_dict: Dict[str, Tensor], prefix: str) -> None:
    """Adapt the layer norm of the last packed sequence P in a state dict to an encoder.

    In the authors' code, this layer norm belongs to the last encoder layer. Its gain and bias are renamed.
    They are removed if the encoder does not have them, and added with initial values if the encoder has them
    since :func:`read_packed`.

    Args:
        encoder: :class:`luna_fairseq.models.fairseq_encoder.FairseqLunaEncoder`.
        state_dict: parameters by name, changed in place.
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
