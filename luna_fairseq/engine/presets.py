"""Architectures in fairseq-hydra-train."""

from typing import Any

from luna_fairseq.engine.mend import RIGHT, Function, Mend

ARCHITECTURES = Mend(
    "architectures",
    RIGHT,
    "a model that a configuration of fairseq-hydra-train names by --arch gets the model's defaults "
    "before the architecture's preset, which then changes nothing",
)


@ARCHITECTURES.around("fairseq.dataclass.initialize:add_defaults", "fairseq_cli.train:add_defaults")
def _preset_first(add_defaults: Function, cfg: Any) -> None:
    from omegaconf import OmegaConf, open_dict

    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    model = cfg.get("model")
    name = model.get("_name") if OmegaConf.is_config(model) else None
    if name in ARCH_CONFIG_REGISTRY and ARCH_MODEL_REGISTRY[name].__module__.startswith("luna_fairseq."):
        with open_dict(model):
            ARCH_CONFIG_REGISTRY[name](model)
    add_defaults(cfg)
