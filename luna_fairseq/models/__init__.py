"""Luna models; one file registers one model with fairseq."""

from luna_fairseq.models.luna import LunaConfig, LunaModel

__all__ = ["LunaConfig", "LunaModel"]
