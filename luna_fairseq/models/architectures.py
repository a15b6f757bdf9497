"""Architectures: named sets of model options for ``--arch``."""

from typing import Any, Dict

from fairseq.models import register_model_architecture

Presets = Dict[str, Dict[str, Any]]

# What presets have gained since checkpoints were trained with them.
GAINED = {"attention_init", "diagonal_prior", "local_parts"}


def register_architectures(model: str, presets: Presets) -> None:
    """Register ``presets``, name -> what it sets apart from the defaults of ``model``'s config, with fairseq.

    The architecture named as the model is registered together with it, and has the defaults.
    """
    for name, preset in presets.items():
        if name != model:
            _register(model, name, preset)


def _register(model: str, name: str, preset: Dict[str, Any]) -> None:
    def architecture(args: Any) -> None:
        # A config that has a name and all else has been through here: it is that of an older checkpoint.
        missing = {option for option in preset if getattr(args, option, None) is None}
        if getattr(args, "_name", None) is not None and missing <= GAINED:
            return
        for option in missing:
            setattr(args, option, preset[option])

    register_model_architecture(model, name)(architecture)
