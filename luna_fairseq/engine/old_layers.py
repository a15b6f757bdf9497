"""Correct layers of fairseq 0.12.2, as later versions of fairseq have done."""

from typing import Any

from luna_fairseq.engine.patch import RUNS, Function, Patch

_ENCODER_LAYER = "fairseq.modules.transformer_layer:TransformerEncoderLayerBase"
# Names of the second copies of the weights.
_COPIES = [f"{part}_{kind}" for part in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")]


def _holds_weights_twice() -> bool:
    """Return True if fairseq's encoder layer holds a second copy of its weights."""
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    return "_load_from_state_dict" in vars(TransformerEncoderLayerBase)


OLD_LAYERS = Patch(
    "old-layers",
    RUNS,
    "The transformer_lra_* models and the Transformers of peer_* stop in distributed training, because "
    "their encoder layers hold a second copy of the weights that gets no gradient. Equal runs of a model "
    "with sinusoidal positions save different files, because an uninitialised number is saved.",
    versions="fairseq 0.12.2",
    is_needed=_holds_weights_twice,
)


@OLD_LAYERS.replaces(f"{_ENCODER_LAYER}.__init__")
def _build_without_copies(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Build the layer, then delete the second copies of its weights."""
    init(self, *args, **kwargs)
    for name in _COPIES:
        delattr(self, name)


@OLD_LAYERS.replaces(f"{_ENCODER_LAYER}._load_from_state_dict")
def _load_without_copies(_: Function, self: Any, state_dict: Any, prefix: str, *args: Any, **kw: Any) -> None:
    """Load the layer from a checkpoint that may hold the second copies."""
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    for name in _COPIES:
        state_dict.pop(prefix + name, None)
    super(TransformerEncoderLayerBase, self)._load_from_state_dict(state_dict, prefix, *args, **kw)


@OLD_LAYERS.replaces("fairseq.modules:SinusoidalPositionalEmbedding.__init__")
def _build_without_saved_buffer(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Build the embedding, and keep its uninitialised buffer out of checkpoints."""
    init(self, *args, **kwargs)
    if "_float_tensor" in self._buffers:
        self._non_persistent_buffers_set.add("_float_tensor")
        self._register_load_state_dict_pre_hook(_remove_float_tensor)


def _remove_float_tensor(state_dict: Any, prefix: str, *args: Any) -> None:
    state_dict.pop(f"{prefix}_float_tensor", None)
