"""Luna models for fairseq: translation, masked and causal language modeling, and classification.

Importing this package registers all models, tasks, criterions and optimizers of luna_fairseq with fairseq.
"""

import luna_fairseq.engine  # noqa: F401  must come first: checks requirements and patches fairseq
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
