"""Small models of every kind, in every variant that computes something different."""

import tiny_luna
import tiny_masked_lm
import torch
from tiny_models import CLASSIFIER_OPTIONS, LM_OPTIONS, LM_VARIANTS, classifier, language_model

NOISE = {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 4}
ONE_LAYER = {"encoder_layers": 1, "decoder_layers": 1}
# More rows than an example of default length has tokens, as in the masked language models of 128 rows.
LOCAL = {"anchored_packed": True, "local_parts": 3, "projection_length": 16, "encoder_layers": 1}
VARIANTS = {
    "translation": {
        **tiny_luna.VARIANTS,
        "noise": NOISE,
        "one layer": ONE_LAYER,
    },
    "shared translation": {"all": {"share_all_embeddings": True}},
    "causal LM": {
        **{name: LM_VARIANTS[name] for name in ("tied", "untied", "pre-norm", "decay")},
        "one layer": ONE_LAYER,
        "no last norm": {"decoder_normalize_before": True, "no_decoder_final_norm": True},
        "learned": LM_VARIANTS["learned positions"],
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
    "causal LM": {**LM_OPTIONS, "max_target_positions": 90},
    "masked LM": tiny_masked_lm.OPTIONS,
    "classifier": CLASSIFIER_OPTIONS,
}
CASES = [tiny_luna.marked(variant, kind) for kind, variants in VARIANTS.items() for variant in variants]


def small_model(kind, variant):
    """Build a small model.

    Returns:
        the fairseq model, and the dictionary of the tokens that it generates or reads; None for images
    """
    options = dict(VARIANTS[kind][variant])
    if kind == "masked LM":
        model = tiny_masked_lm.tiny_model(torch.float32, tiny_masked_lm.HEADS, **options)
        return model, model.encoder.sentence_encoder.dictionary
    if kind.endswith("translation"):
        task = tiny_luna.Task(23, 23) if kind.startswith("shared") else tiny_luna.Task()
        return tiny_luna.tiny_model(torch.float32, task=task, **options), task.target_dictionary
    if kind == "causal LM":
        return language_model(torch.float32, max_target_positions=90, **options), tiny_luna.dictionary(23)
    return classifier(torch.float32, **options), None if "pixels" in options else tiny_luna.dictionary(23)
