"""A small model of every kind, in every variant that computes something else."""

from argparse import Namespace

import tiny_luna
import tiny_masked_lm
import torch

from luna_fairseq.models import LunaClassifier, LunaLanguageModel

NOISE = {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 4}
ONE_LAYER = {"encoder_layers": 1, "decoder_layers": 1}
LOCAL = {"anchored_packed": True, "local_parts": 3}
LM = {
    "decoder_embed_dim": 12,
    "decoder_ffn_embed_dim": 20,
    "decoder_layers": 2,
    "decoder_attention_heads": 3,
    "projection_length": 5,
    "dropout": 0.0,
    "max_target_positions": 90,
}
CLASSIFIER = {
    "encoder_embed_dim": 12,
    "encoder_ffn_embed_dim": 20,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_projection_length": 5,
    "classifier_out_dim": 7,
    "sentence_class_num": 4,
    "max_positions": 40,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
VARIANTS = {
    "translation": {
        **tiny_luna.VARIANTS,
        "noise": NOISE,
        "one layer": ONE_LAYER,
    },
    "shared translation": {"all": {"share_all_embeddings": True}},
    "causal LM": {
        "tied": {},
        "one layer": ONE_LAYER,
        "untied": {"untie_luna_kv": True},
        "pre-norm": {"decoder_normalize_before": True},
        "no last norm": {"decoder_normalize_before": True, "no_decoder_final_norm": True},
        "decay": {"causal_decay": True},
        "learned": {"decoder_learned_pos": True, "share_decoder_input_output_embed": True},
        "noise": NOISE,
        "widths": {"decoder_input_dim": 8, "decoder_output_dim": 8, "share_decoder_input_output_embed": True},
    },
    "masked LM": {**tiny_masked_lm.VARIANTS, "noise": NOISE, "local": LOCAL, "one layer": ONE_LAYER},
    "classifier": {
        "cls": {},
        "mean": {"sen_rep_type": "mp"},
        "P": {"use_p": True},
        "tied layers": {"tie_layer_weights": True, "encoder_layers": 3},
        "pre-norm tied": {"encoder_normalize_before": True, "tie_layer_weights": True},
        "learned": {"encoder_learned_pos": True},
        "anchored": {"anchored_packed": True},
        "pixels": {"pixels": True},
        "pixels mean": {"pixels": True, "sen_rep_type": "mp"},
        "pairs": {"pairs": True, "pair_combination": "nli"},
    },
}
BASE = {
    "translation": tiny_luna.OPTIONS,
    "shared translation": tiny_luna.OPTIONS,
    "causal LM": LM,
    "masked LM": tiny_masked_lm.OPTIONS,
    "classifier": CLASSIFIER,
}
CASES = [(kind, variant) for kind, variants in VARIANTS.items() for variant in variants]


def moved(model):
    """``model`` in evaluation mode, with every parameter off its initial value."""
    with torch.no_grad():
        for parameter in model.parameters():  # in their order: the same noise every time
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.float().eval()


def small_model(kind, variant):
    """The model and the dictionary of what it reads or writes; None of pixels."""
    options = dict(VARIANTS[kind][variant])
    torch.manual_seed(0)
    if kind == "masked LM":
        model = tiny_masked_lm.tiny_model(torch.float32, tiny_masked_lm.HEADS, **options)
        return model, model.encoder.sentence_encoder.dictionary
    if kind.endswith("translation"):
        task = tiny_luna.Task(23, 23) if kind.startswith("shared") else tiny_luna.Task()
        return tiny_luna.tiny_model(torch.float32, task=task, **options), task.target_dictionary
    if kind == "causal LM":
        task = Namespace(
            source_dictionary=tiny_luna.dictionary(23), target_dictionary=tiny_luna.dictionary(23)
        )
        model = LunaLanguageModel.build_model(Namespace(**{**LM, **options}), task)
        return moved(model), task.target_dictionary
    dictionary = None if options.pop("pixels", False) else tiny_luna.dictionary(23)
    task = Namespace(source_dictionary=dictionary, pairs=options.pop("pairs", False))
    return moved(LunaClassifier.build_model(Namespace(**{**CLASSIFIER, **options}), task)), dictionary
