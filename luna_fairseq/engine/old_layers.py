"""Layers of fairseq 0.12.2 that later versions have corrected."""

from typing import Any

from luna_fairseq.engine.mend import RUNS, Function, Mend

_ENCODER_LAYER = "fairseq.modules.transformer_layer:TransformerEncoderLayerBase"
_COPIES = [f"{part}_{kind}" for part in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")]


def _holds_weights_twice() -> bool:
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    return "_load_from_state_dict" in vars(TransformerEncoderLayerBase)


OLD_LAYERS = Mend(
    "old-layers",
    RUNS,
    "The transformer_lra_* models and the Transformers of peer_* stop in distributed training, because "
    "their encoder layers hold a second copy of the weights that gets no gradient. Equal runs of a model "
    "with sinusoidal positions save different files, because an uninitialised number is saved.",
    versions="fairseq 0.12.2",
    needed=_holds_weights_twice,
)


@OLD_LAYERS.around(f"{_ENCODER_LAYER}.__init__")
def _build_without_copies(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    init(self, *args, **kwargs)
    for name in _COPIES:
        delattr(self, name)


@OLD_LAYERS.around(f"{_ENCODER_LAYER}._load_from_state_dict")
def _load_without_copies(_: Function, self: Any, state_dict: Any, prefix: str, *args: Any, **kw: Any) -> None:
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    for name in _COPIES:
        state_dict.pop(prefix + name, None)
    super(TransformerEncoderLayerBase, self)._load_from_state_dict(state_dict, prefix, *args, **kw)


@OLD_LAYERS.around("fairseq.modules:SinusoidalPositionalEmbedding.__init__")
def _with_nothing_to_save(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    init(self, *args, **kwargs)
    if "_float_tensor" in self._buffers:
        self._non_persistent_buffers_set.add("_float_tensor")
        self._register_load_state_dict_pre_hook(_remove_float_tensor)


def _remove_float_tensor(state_dict: Any, prefix: str, *args: Any) -> None:
    state_dict.pop(f"{prefix}_float_tensor", None)
