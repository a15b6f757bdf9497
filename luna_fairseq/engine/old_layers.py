"""Patch ``old-layers``: correct layers of fairseq 0.12.2 like later versions of fairseq."""

from typing import Any

from luna_fairseq.engine.patch import RUNS, Function, Patch

_ENCODER_LAYER = "fairseq.modules.transformer_layer:TransformerEncoderLayerBase"
# Names of the second copies of the weights.
_COPIES = [f"{part}_{kind}" for part in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")]


def _has_weights_twice() -> bool:
    """Return True if fairseq's encoder layer has a second copy of its weights."""
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    return "_load_from_state_dict" in vars(TransformerEncoderLayerBase)


OLD_LAYERS = Patch(
    "old-layers",
    RUNS,
    "The models transformer_lra_* and peer_* stop in distributed training, because their encoder layers have "
    "a second copy of the weights without gradients. Equal runs of a model with sinusoidal positions write "
    "different checkpoints, because an uninitialised number is saved.",
    versions="fairseq 0.12.2",
    is_needed=_has_weights_twice,
)


@OLD_LAYERS.replaces(f"{_ENCODER_LAYER}.__init__")
def _build_without_copies(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Build a layer, and delete the second copies of its weights.

    Args:
        init: original constructor of the layer.
        self: the layer.
        args: arguments of the constructor.
        kwargs: arguments of the constructor.
    """
    init(self, *args, **kwargs)
    for name in _COPIES:
        delattr(self, name)


@OLD_LAYERS.replaces(f"{_ENCODER_LAYER}._load_from_state_dict")
def _load_without_copies(_: Function, self: Any, state_dict: Any, prefix: str, *args: Any, **kw: Any) -> None:
    """Load a layer from a checkpoint, which may contain the second copies.

    Args:
        _: original method of fairseq, which is not called.
        self: the layer.
        state_dict: parameters of the checkpoint by name, changed in place.
        prefix: beginning of the names of the layer's parameters.
        args: further arguments of the original method.
        kw: further arguments of the original method.
    """
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    for name in _COPIES:
        state_dict.pop(prefix + name, None)
    super(TransformerEncoderLayerBase, self)._load_from_state_dict(state_dict, prefix, *args, **kw)


@OLD_LAYERS.replaces("fairseq.modules:SinusoidalPositionalEmbedding.__init__")
def _build_without_saved_buffer(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Build the embedding, and exclude its uninitialised buffer from checkpoints.

    Args:
        init: original constructor of the embedding.
        self: the embedding.
        args: arguments of the constructor.
        kwargs: arguments of the constructor.
    """
    init(self, *args, **kwargs)
    if "_float_tensor" in self._buffers:
        self._non_persistent_buffers_set.add("_float_tensor")
        self._register_load_state_dict_pre_hook(_remove_float_tensor)


def _remove_float_tensor(state_dict: Any, prefix: str, *args: Any) -> None:
    """Remove the buffer from the state dict of an older checkpoint.

    Args:
        state_dict: parameters of the checkpoint by name, changed in place.
        prefix: beginning of the names of the embedding's parameters.
        args: ignored.
    """
    state_dict.pop(f"{prefix}_float_tensor", None)
