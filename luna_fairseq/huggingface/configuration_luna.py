"""Configuration of Luna's models for Hugging Face's transformers: this package's options under their names,
and transformers' names for the common ones."""

from typing import Any, Dict

from transformers import PretrainedConfig

# What the models read, with the defaults of the base masked language model (Luna, table 8).
DEFAULTS: Dict[str, Any] = {
    "projection_length": 128,
    "fix_projection_length": False,
    "untie_luna_kv": False,
    "non_contextual_packed": False,
    "packed_is_read": False,
    "anchored_packed": False,
    "anchor_strength": 4.0,
    "local_parts": 0,
    "activation_fn": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.0,
    "word_dropout": 0.0,
    "quant_noise_pq": 0.0,
    "no_scale_embedding": True,
    "layernorm_embedding": True,
    "no_token_positional_embeddings": False,
    "encoder_embed_dim": 768,
    "encoder_ffn_embed_dim": 3072,
    "encoder_layers": 12,
    "encoder_attention_heads": 12,
    "encoder_projected_attention_heads": 12,
    "encoder_normalize_before": False,
    "encoder_learned_pos": True,
    "max_source_positions": 512,
}
# Of a decoder.
DECODER_DEFAULTS: Dict[str, Any] = {
    "pack_activation": "softplus",
    "causal_decay": False,
    "cross_attention": "luna",
    "packed_lookup": 0,
    "diagonal_prior": False,
    "separators": None,  # ids between sentences, of source and target, where the diagonal counts from them
    "no_decoder_final_norm": False,
    "decoder_embed_dim": 512,
    "decoder_ffn_embed_dim": 2048,
    "decoder_layers": 6,
    "decoder_attention_heads": 8,
    "decoder_projected_attention_heads": 8,
    "decoder_input_dim": 512,
    "decoder_output_dim": 512,
    "decoder_normalize_before": False,
    "decoder_learned_pos": False,
    "max_target_positions": 1024,
}


def _standard_names(side: str, positions: str) -> Dict[str, str]:
    names = {
        "hidden_size": "embed_dim",
        "intermediate_size": "ffn_embed_dim",
        "num_hidden_layers": "layers",
        "num_attention_heads": "attention_heads",
    }
    return {
        **{ours: f"{side}_{theirs}" for ours, theirs in names.items()},
        "max_position_embeddings": positions,
    }


class LunaConfig(PretrainedConfig):
    """Configuration of an exported model with an encoder.

    Args:
        vocab_size: tokens
        pad_token_id: the padding, also of the positions
        kwargs: this package's options (``encoder_embed_dim``, ``projection_length``, ...), or transformers'
            names (``hidden_size``, ...); with a decoder, its options too
    """

    model_type = "luna"
    attribute_map = _standard_names("encoder", "max_source_positions")
    defaults = DEFAULTS
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(self, vocab_size: int = 50265, pad_token_id: int = 1, **kwargs: Any):
        self.vocab_size = vocab_size
        defaults = {**self.defaults, **(DECODER_DEFAULTS if kwargs.get("is_encoder_decoder") else {})}
        names = {self.attribute_map.get(name, name) for name in kwargs}
        for name, value in defaults.items():
            if name not in names:
                setattr(self, name, value)
        super().__init__(**{"tie_word_embeddings": True, **kwargs, "pad_token_id": pad_token_id})


class LunaLongConfig(LunaConfig):
    """Configuration of a classifier of long sequences; arguments as of :class:`LunaConfig`.

    transformers 5 remembers one model of each class of configurations, and
    ``AutoModelForSequenceClassification`` loads two kinds of models.
    """

    model_type = "luna_long"

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)  # written out, as transformers 5 gives a class without it another


class LunaDecoderConfig(LunaConfig):
    """Configuration of a causal language model. The arguments are those of :class:`LunaConfig`."""

    model_type = "luna_lm"
    attribute_map = _standard_names("decoder", "max_target_positions")
    defaults = {
        name: value
        for name, value in {**DEFAULTS, **DECODER_DEFAULTS}.items()
        if not name.startswith("encoder_") and name != "max_source_positions"
    }

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)  # written out, as transformers 5 gives a class without it another
