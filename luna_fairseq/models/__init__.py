"""Luna models; one file registers one model with fairseq. Importing this registers everything else, too."""

import luna_fairseq.engine  # noqa: F401  first: it checks requirements and changes fairseq
from luna_fairseq import register

# isort: split
from luna_fairseq.models.luna import LunaConfig, LunaModel
from luna_fairseq.models.luna_classifier import LunaClassifier, LunaClassifierConfig
from luna_fairseq.models.luna_lm import LunaLanguageModel, LunaLanguageModelConfig
from luna_fairseq.models.luna_masked_lm import LunaMaskedLM, LunaMaskedLMConfig

__all__ = [
    "LunaClassifier",
    "LunaClassifierConfig",
    "LunaConfig",
    "LunaLanguageModel",
    "LunaLanguageModelConfig",
    "LunaMaskedLM",
    "LunaMaskedLMConfig",
    "LunaModel",
]

register()
