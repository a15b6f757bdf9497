"""Layer norm of the last packed sequence P of a sentence encoder."""

from typing import Dict

from torch import Tensor, nn

from fairseq.modules import LayerNorm


def read_packed(encoder: nn.Module) -> None:
    """Give the norm of a sentence encoder's last P a gain and a bias, because a new head reads P.

    A checkpoint without this gain and bias leaves them at their initial values.

    Args:
        encoder: :class:`luna_fairseq.models.fairseq_encoder.FairseqLunaEncoder`, changed in place
    """
    norm = encoder.packed_layer_norm
    if norm is not None and norm.weight is None:
        like = encoder.packed_embedding.weight
        norm = LayerNorm(norm.normalized_shape, export=encoder.cfg.export)
        encoder.packed_layer_norm = norm.to(device=like.device, dtype=like.dtype)
        encoder.packed_is_read_later = True


def find_packed_norm(encoder: nn.Module, state_dict: Dict[str, Tensor], prefix: str) -> None:
    """Rename the norm of the last P in a state dict to fit the encoder.

    The authors' code keeps this norm in the last layer, even if nothing reads P. It is dropped if the encoder
    has no gain and bias for it, and completed with initial values if a head was added later.

    Args:
        encoder: :class:`luna_fairseq.models.fairseq_encoder.FairseqLunaEncoder`
        state_dict: parameters by name, changed in place
        prefix: prefix of the encoder's parameters
    """
    layers = f"{prefix}layers."
    depths = [int(name[len(layers) :].split(".")[0]) for name in state_dict if name.startswith(layers)]
    for part in ("weight", "bias"):
        ours = f"{prefix}packed_layer_norm.{part}"
        theirs = f"{layers}{max(depths, default=0)}.packed_layer_norm.{part}"
        if not encoder.cfg.encoder.normalize_before and theirs in state_dict:
            state_dict[ours] = state_dict.pop(theirs)
        value = getattr(encoder.packed_layer_norm, part)
        if value is None:
            state_dict.pop(ours, None)
        elif encoder.packed_is_read_later:
            state_dict.setdefault(ours, value)
