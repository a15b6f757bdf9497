"""Architectures: named sets of model options for ``--arch``."""

from typing import Any, Dict

from fairseq.models import register_model_architecture

Presets = Dict[str, Dict[str, Any]]


def register_architectures(model: str, presets: Presets) -> None:
    """Register ``presets``, name -> what it sets apart from the defaults of ``model``'s config, with fairseq.

    The architecture named as the model is registered together with it, and has the defaults.
    """
    for name, preset in presets.items():
        if name != model:
            _register(model, name, preset)


def _register(model: str, name: str, preset: Dict[str, Any]) -> None:
    def architecture(args: Any) -> None:
        for option, value in preset.items():
            if getattr(args, option, None) is None:
                setattr(args, option, value)

    register_model_architecture(model, name)(architecture)
