"""A Luna masked language model that runs in milliseconds."""

from argparse import Namespace

import torch
from tiny_luna import dictionary, perturb

from luna_fairseq.models.luna_masked_lm import LunaMaskedLM

BOS = 0
HEADS = (
    "sentence_classification_head",
    "mean_classification_head",
    "pooling_classification_head",
    "attention_classification_head",
)
OPTIONS = {
    "encoder_embed_dim": 12,
    "encoder_ffn_embed_dim": 20,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "projection_length": 5,
    "max_positions": 40,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
VARIANTS = {
    "tied": {},
    "untied": {"untie_luna_kv": True},
    "pre-norm": {"encoder_normalize_before": True},
    "fixed length": {"fix_projection_length": True},
    "untied head": {"untie_weights_luna": True},
    "anchored": {"anchored_packed": True},
    "anchored untied pre-norm": {
        "anchored_packed": True,
        "untie_luna_kv": True,
        "encoder_normalize_before": True,
    },
}


class Task:
    """Stand-in of a masked language modelling task."""

    def __init__(self, size=23, longest=40):
        self.source_dictionary = dictionary(size)
        self.longest = longest

    def max_positions(self):
        return self.longest


def tiny_model(dtype=torch.float64, heads=HEADS, seed=0, **options):
    """Build a model in evaluation mode, with noise added to every parameter."""
    torch.manual_seed(seed)
    model = LunaMaskedLM.build_model(Namespace(**{**OPTIONS, **options}), Task())
    for head in heads:
        model.register_classification_head(head, num_classes=3)
    return perturb(model).to(dtype).eval()
