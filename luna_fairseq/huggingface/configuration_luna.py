"""Configuration classes of the Luna models for Hugging Face's transformers.

Fields are named after fairseq's options, such as ``encoder_embed_dim``. Hugging Face's attribute names, such
as ``hidden_size``, are aliases for these fields.
"""

from typing import Any, Dict

from transformers import PretrainedConfig

# Fields of every model. The defaults match the base masked language model (Luna paper, Table 8).
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
    """Map Hugging Face's attribute names, such as ``hidden_size``, to the fields of a Luna configuration.

    Field names are prefixed with ``side``, "encoder" or "decoder". The attribute ``max_position_embeddings``
    maps to the field named by ``positions``.
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

    In each layer, the packed sequence P, a short sequence of L vectors, attends to the tokens (pack
    attention). Then the tokens attend to P (unpack attention). ``DEFAULTS`` holds the default values.

    Args:
        vocab_size: vocabulary size, or target vocabulary size for a translation model.
        pad_token_id: id of the padding token.
        projection_length: length L of the packed sequence P.
        fix_projection_length: use all L vectors of P for every sequence. Otherwise P is at most as long as
            the sequence.
        untie_luna_kv: use separate projections for keys and values.
        non_contextual_packed: every layer uses the learned initial P, not the P of the preceding layer.
        packed_is_read: the classification head takes P as input. The final layer normalization of P then has
            a gain and a bias.
        anchored_packed: divide the sequence into one segment per vector of P, and let each vector favor the
            tokens of its segment.
        anchor_strength: initial strength with which a vector of P favors its segment.
        local_parts: let each token also attend to the tokens of this many nearest segments (0: none).
        activation_fn: fairseq name of the activation function.
        dropout: dropout probability of embeddings and layer outputs.
        attention_dropout: dropout probability of attention weights.
        activation_dropout: dropout probability after the activation.
        word_dropout: probability of dropping a whole token embedding.
        quant_noise_pq: quantization noise during training. If greater than 0, the model has a linear layer
            after the embedding.
        no_scale_embedding: do not scale token embeddings by the square root of their width.
        layernorm_embedding: apply layer normalization to the embeddings.
        no_token_positional_embeddings: use no positional embeddings.
        encoder_embed_dim: width of the encoder.
        encoder_ffn_embed_dim: inner width of the feed-forward blocks.
        encoder_layers: number of encoder layers.
        encoder_attention_heads: number of heads of unpack attention.
        encoder_projected_attention_heads: number of heads of pack attention.
        encoder_normalize_before: use pre-norm layers.
        encoder_learned_pos: use learned positional embeddings instead of sinusoidal ones.
        max_source_positions: maximum number of input tokens.
        **kwargs: decoder fields of :class:`LunaDecoderConfig` for a translation model
            (``is_encoder_decoder=True``), and fields of :class:`transformers.PretrainedConfig`.

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
    """Configuration of a Luna classifier for Long Range Arena, with the fields of :class:`LunaConfig`.

    transformers 5 maps a configuration class to a single model class. This class exists so that
    ``AutoModelForSequenceClassification`` can load LunaForLongSequenceClassification.
    """

    model_type = "luna_long"

    # transformers 5 would replace the constructor of a class that does not define one.
    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)


class LunaDecoderConfig(LunaConfig):
    """Configuration of a Luna causal language model, which has the decoder fields of a translation model.

    A causal language model has no encoder fields (``encoder_*``, ``max_source_positions``), and fields that
    concern the source have no effect. ``DECODER_DEFAULTS`` holds the default values. P is the packed
    sequence, a short sequence of vectors to which the tokens attend.

    Args:
        pack_activation: activation of causal pack attention, "softplus" or "elu".
        causal_decay: let the weight of earlier tokens decay with distance.
        cross_attention: "luna" attends to the source through P, "softmax" to all source tokens.
        packed_lookup: number of source segments, one per selected vector of P, whose tokens each target token
            also attends to, or 0.
        diagonal_prior: favor source tokens with a relative position similar to the target token's.
        separators: ids of the sentence separator in the source and target vocabularies. If given,
            ``diagonal_prior`` compares positions within sentences, otherwise within the whole text.
        no_decoder_final_norm: omit the final layer normalization of a pre-norm decoder.
        decoder_embed_dim: width of the decoder.
        decoder_ffn_embed_dim: inner width of the feed-forward blocks.
        decoder_layers: number of decoder layers.
        decoder_attention_heads: number of heads of unpack attention.
        decoder_projected_attention_heads: number of heads of pack attention.
        decoder_input_dim: width of the token embedding.
        decoder_output_dim: input width of the output projection.
        decoder_normalize_before: use pre-norm layers.
        decoder_learned_pos: use learned positional embeddings instead of sinusoidal ones.
        max_target_positions: maximum number of tokens in a text.
        **kwargs: remaining arguments of :class:`LunaConfig`.

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
