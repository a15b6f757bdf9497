"""The norm of an encoder's last P: found where the authors keep it, made where nothing read P before."""

from typing import Dict

from torch import Tensor, nn

from fairseq.modules import LayerNorm


def read_packed(encoder: nn.Module) -> None:
    """Give the norm of a sentence encoder's last P its gain and bias, because something reads it from now on.
    A checkpoint from before leaves them as they begin."""
    norm = encoder.packed_layer_norm
    if norm is not None and norm.weight is None:
        like = encoder.packed_embedding.weight
        norm = LayerNorm(norm.normalized_shape, export=encoder.cfg.export)
        encoder.packed_layer_norm = norm.to(device=like.device, dtype=like.dtype)
        encoder.packed_is_read_later = True


def find_packed_norm(encoder: nn.Module, state_dict: Dict[str, Tensor], prefix: str) -> None:
    """Bring the norm of the last P into place: the authors have it in the last layer, and whether something
    reads it or not."""
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
