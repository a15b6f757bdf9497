"""Configuration of the Luna masked language model for Hugging Face's transformers."""

from typing import Any

from transformers import PretrainedConfig


class LunaConfig(PretrainedConfig):
    """The base size of the paper (Luna, table 8) by default.

    Args:
        vocab_size: tokens
        hidden_size: C, width of everything
        num_hidden_layers: layers
        num_attention_heads: heads of pack and unpack attention
        intermediate_size: width of the feed-forward block
        projection_length: l, rows of the packed sequence P
        fix_projection_length: always use all rows; otherwise P is never longer than a sequence
        untie_kv: separate projections for keys and values
        anchored_packed: rows of P have places in the sequence
        local_parts: tokens also read so many parts of the sequence around them
        share_token_projections: by the keys and values of pack attention
        normalize_before: layer norms before each block
        untie_embeddings: an output projection of its own
        max_position_embeddings: the longest sequence
        hidden_act: activation of the feed-forward block and of the LM head, by transformers' name
        hidden_dropout, attention_dropout, activation_dropout: probabilities in training
    """

    model_type = "luna"

    def __init__(
        self,
        vocab_size: int = 50265,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        projection_length: int = 128,
        fix_projection_length: bool = False,
        untie_kv: bool = False,
        anchored_packed: bool = False,
        local_parts: int = 0,
        share_token_projections: bool = False,
        normalize_before: bool = False,
        untie_embeddings: bool = False,
        max_position_embeddings: int = 512,
        hidden_act: str = "gelu",
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        activation_dropout: float = 0.0,
        pad_token_id: int = 1,
        **kwargs: Any,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.projection_length = projection_length
        self.fix_projection_length = fix_projection_length
        self.untie_kv = untie_kv
        self.anchored_packed = anchored_packed
        self.local_parts = local_parts
        self.share_token_projections = share_token_projections
        self.normalize_before = normalize_before
        self.untie_embeddings = untie_embeddings
        self.max_position_embeddings = max_position_embeddings
        self.hidden_act = hidden_act
        self.hidden_dropout = hidden_dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        super().__init__(**{**kwargs, "pad_token_id": pad_token_id})
