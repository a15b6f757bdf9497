"""fairseq patch ``old-layers``: remove duplicate weights and an uninitialized buffer of fairseq 0.12.2.

Later fairseq versions have neither.
"""

from typing import Any

from luna_fairseq.engine.patch import RUNS, Function, Patch

_ENCODER_LAYER = "fairseq.modules.transformer_layer:TransformerEncoderLayerBase"
# Names of the duplicate weights.
_DUPLICATES = [
    f"{part}_{kind}" for part in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")
]


def _has_duplicate_weights() -> bool:
    """Return True if the encoder layer of the installed fairseq registers a second copy of its weights.

    fairseq 0.12.2 keeps the copy for inference. The copy gets no gradient, which breaks distributed training.
    """
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    return "_load_from_state_dict" in vars(TransformerEncoderLayerBase)


OLD_LAYERS = Patch(
    "old-layers",
    RUNS,
    "The models transformer_lra_* and peer_* stop in distributed training, because their encoder layers have "
    "a second copy of the weights without gradients. Equal runs of a model with sinusoidal positions write "
    "different checkpoints, because an uninitialised number is saved.",
    versions="fairseq 0.12.2",
    is_needed=_has_duplicate_weights,
)


@OLD_LAYERS.replaces(f"{_ENCODER_LAYER}.__init__")
def _build_without_duplicates(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Replacement for the encoder layer's ``__init__`` that removes the second copy of the weights."""
    init(self, *args, **kwargs)
    for name in _DUPLICATES:
        delattr(self, name)


@OLD_LAYERS.replaces(f"{_ENCODER_LAYER}._load_from_state_dict")
def _load_without_duplicates(
    load: Function, self: Any, state_dict: Any, prefix: str, *args: Any, **kw: Any
) -> None:
    """Replacement for the layer's ``_load_from_state_dict`` that ignores a second copy of the weights."""
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    for name in _DUPLICATES:
        state_dict.pop(prefix + name, None)
    super(TransformerEncoderLayerBase, self)._load_from_state_dict(state_dict, prefix, *args, **kw)


@OLD_LAYERS.replaces("fairseq.modules:SinusoidalPositionalEmbedding.__init__")
def _build_without_saved_buffer(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Replacement for ``__init__`` of sinusoidal positions that keeps ``_float_tensor`` out of state dicts.

    The buffer is uninitialized, so identical runs would write different checkpoints.
    """
    init(self, *args, **kwargs)
    if "_float_tensor" in self._buffers:
        self._non_persistent_buffers_set.add("_float_tensor")
        self._register_load_state_dict_pre_hook(_remove_float_tensor)


def _remove_float_tensor(state_dict: Any, prefix: str, *args: Any) -> None:
    """Remove the entry ``_float_tensor`` of a position embedding from the state dict of an older checkpoint.

    torch calls this hook before it loads the state dict.
    """
    state_dict.pop(f"{prefix}_float_tensor", None)
