"""Configurations of the Luna models for Hugging Face's transformers.

The fields have the names of fairseq's options (``encoder_embed_dim``, ``encoder_layers``). The names that
transformers uses for the common fields (``hidden_size``, ``num_hidden_layers``) work as well.
"""

from typing import Any, Dict

from transformers import PretrainedConfig

# Fields of every model. The defaults are those of the base masked language model (Luna paper, Table 8).
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
# Additional fields of models with a decoder.
DECODER_DEFAULTS: Dict[str, Any] = {
    "pack_activation": "softplus",
    "causal_decay": False,
    "cross_attention": "luna",
    "packed_lookup": 0,
    "diagonal_prior": False,
    "separators": None,
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


def _attribute_map(side: str, positions: str) -> Dict[str, str]:
    """Map transformers' names of the common fields to the names of the fields here.

    Args:
        side: "encoder" or "decoder", the prefix of the fields that the names of transformers refer to.
        positions: name of the field that ``max_position_embeddings`` refers to.

    Returns:
        Name of a field here, by transformers' name.
    """
    names = {
        "hidden_size": "embed_dim",
        "intermediate_size": "ffn_embed_dim",
        "num_hidden_layers": "layers",
        "num_attention_heads": "attention_heads",
    }
    return {
        **{standard: f"{side}_{ours}" for standard, ours in names.items()},
        "max_position_embeddings": positions,
    }


class LunaConfig(PretrainedConfig):
    """Configuration of a Luna masked language model, classifier or translation model.

    P is the packed sequence, a short sequence of L vectors. Each layer packs the tokens into P (pack
    attention) and lets the tokens attend to the result (unpack attention).

    Args:
        vocab_size: number of tokens in the vocabulary; the target vocabulary of a translation model (default:
            50265).
        pad_token_id: id of the padding token (default: 1).
        projection_length: length L of P (default: 128).
        fix_projection_length: use all L rows of P for every sequence. Otherwise P is at most as long as the
            sequence (default: False).
        untie_luna_kv: use separate projections for keys and values (default: False).
        non_contextual_packed: every layer reads the learned P instead of the P that the preceding layer
            packed (default: False).
        packed_is_read: the classification head reads P, so the norm of the last P has a gain and a bias
            (default: False).
        anchored_packed: give each row of P a place in the sequence and favour nearby tokens (default: False).
        anchor_strength: initial strength of the anchors, if ``anchored_packed`` is set (default: 4.0).
        local_parts: number of segments in the window of nearby tokens that each encoder token also reads; 0
            for no window (default: 0).
        activation_fn: fairseq's name of the activation function (default: "gelu").
        dropout: dropout probability of embeddings and layer outputs (default: 0.1).
        attention_dropout: dropout probability of attention weights (default: 0.1).
        activation_dropout: dropout probability after the activation (default: 0.0).
        word_dropout: probability of dropping a whole token vector (default: 0.0).
        quant_noise_pq: quantization noise of the training. If it is positive, the model has a linear layer
            after the embedding (default: 0.0).
        no_scale_embedding: do not multiply token vectors by the square root of their width (default: True).
        layernorm_embedding: apply layer normalization to the embeddings (default: True).
        no_token_positional_embeddings: use no positional embeddings (default: False).
        encoder_embed_dim: width C of the encoder (default: 768).
        encoder_ffn_embed_dim: inner width of the feed-forward blocks (default: 3072).
        encoder_layers: number of encoder layers (default: 12).
        encoder_attention_heads: number of heads of unpack attention (default: 12).
        encoder_projected_attention_heads: number of heads of pack attention (default: 12).
        encoder_normalize_before: use pre-norm layers (default: False).
        encoder_learned_pos: use learned instead of sinusoidal positions (default: True).
        max_source_positions: largest number of tokens of an input (default: 512).
        **kwargs: all other fields. A translation model (``is_encoder_decoder=True``) also has the decoder
            fields of :class:`LunaDecoderConfig`, and :class:`transformers.PretrainedConfig` has its own.

    Example:
        >>> config = LunaConfig(vocab_size=1000, hidden_size=64)
        >>> config.encoder_embed_dim, config.encoder_layers
        (64, 12)
    """

    model_type = "luna"
    attribute_map = _attribute_map("encoder", "max_source_positions")
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
    """Configuration of a Luna classifier for Long Range Arena.

    It is a class of its own because transformers 5 maps each configuration class to one model class, and
    ``AutoModelForSequenceClassification`` has to load two kinds of Luna classifiers.

    Args:
        **kwargs: arguments of :class:`LunaConfig`.

    Example:
        >>> LunaLongConfig(vocab_size=256).model_type
        'luna_long'
    """

    model_type = "luna_long"

    # transformers 5 would replace the constructor of a class that does not define one.
    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)


class LunaDecoderConfig(LunaConfig):
    """Configuration of a Luna causal language model.

    Fields of an encoder (``encoder_*``, ``max_source_positions``) do not exist. The fields that concern a
    source are used by translation models only. P is the packed sequence; see :class:`LunaConfig`.

    Args:
        pack_activation: activation of causal pack attention, "softplus" or "elu" (default: "softplus").
        causal_decay: let the weight of earlier tokens decay with distance (default: False).
        cross_attention: attention to the source of a translation model. "luna" reads the source through P,
            "softmax" reads all source tokens (default: "luna").
        packed_lookup: number of rows of P whose source tokens are read as well; 0 for none (default: 0).
        diagonal_prior: favour source tokens near the diagonal of the alignment (default: False).
        separators: ids of the sentence separator in the source and in the target. The diagonal then starts
            again with each sentence (default: None, the diagonal spans the whole text).
        no_decoder_final_norm: omit the last layer normalization of a pre-norm decoder (default: False).
        decoder_embed_dim: width C of the decoder (default: 512).
        decoder_ffn_embed_dim: inner width of the feed-forward blocks (default: 2048).
        decoder_layers: number of decoder layers (default: 6).
        decoder_attention_heads: number of heads of unpack attention (default: 8).
        decoder_projected_attention_heads: number of heads of pack attention (default: 8).
        decoder_input_dim: width of the token embedding (default: 512).
        decoder_output_dim: width of the input of the output projection (default: 512).
        decoder_normalize_before: use pre-norm layers (default: False).
        decoder_learned_pos: use learned instead of sinusoidal positions (default: False).
        max_target_positions: largest number of tokens of a text (default: 1024).
        **kwargs: other arguments of :class:`LunaConfig`.

    Example:
        >>> config = LunaDecoderConfig(vocab_size=1000, num_hidden_layers=2)
        >>> config.decoder_layers, config.decoder_embed_dim
        (2, 512)
    """

    model_type = "luna_lm"
    attribute_map = _attribute_map("decoder", "max_target_positions")
    defaults = {
        name: value
        for name, value in {**DEFAULTS, **DECODER_DEFAULTS}.items()
        if not name.startswith("encoder_") and name != "max_source_positions"
    }

    # transformers 5 would replace the constructor of a class that does not define one.
    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
