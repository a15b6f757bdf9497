"""Options of the Luna causal language model: fairseq's Transformer LM options under their names, and Luna's own."""

from dataclasses import dataclass
from typing import Optional

from omegaconf import II

from fairseq import utils
from fairseq.dataclass import ChoiceEnum
from luna_fairseq.models.luna_config import LayerConfig, option
from luna_fairseq.ops.causal_luna import BACKENDS, PACK_ACTIVATIONS


@dataclass
class LunaLanguageModelConfig(LayerConfig):
    """Defaults are the size of the base translation model's decoder."""

    # Luna
    projection_length: int = option(32, "l, the length of every layer's packed sequence P")
    untie_luna_kv: bool = option(False, "separate projections for keys and values")
    pack_activation: ChoiceEnum(list(PACK_ACTIVATIONS)) = option(
        "softplus", "activation of causal pack attention"
    )
    luna_backend: ChoiceEnum(list(BACKENDS)) = option(
        "auto", "form of causal attention used for whole sequences"
    )
    word_dropout: float = option(0.0, "dropout probability for whole token embeddings")

    # the Transformer LM's
    activation_fn: ChoiceEnum(utils.get_available_activation_fns()) = option(
        "relu", "activation function to use"
    )
    dropout: float = option(0.1, "dropout probability")
    attention_dropout: float = option(0.0, "dropout probability for attention weights")
    activation_dropout: float = option(
        0.0, "dropout probability after activation in FFN", argparse_alias="--relu-dropout"
    )
    decoder_embed_dim: int = option(512, "decoder embedding dimension")
    decoder_ffn_embed_dim: int = option(2048, "decoder embedding dimension for FFN")
    decoder_layers: int = option(6, "number of decoder layers")
    decoder_attention_heads: int = option(8, "number of decoder attention heads")
    decoder_normalize_before: bool = option(False, "apply layernorm before each decoder block")
    no_decoder_final_norm: bool = option(False, "no layernorm after the last decoder block, with pre-norm")
    decoder_learned_pos: bool = option(False, "use learned positional embeddings")
    decoder_layerdrop: float = option(0.0, "LayerDrop probability for the decoder")
    decoder_layers_to_keep: Optional[str] = option(
        None, "which decoder layers to keep when pruning, as 0,2,4"
    )
    decoder_input_dim: Optional[int] = option(None, "decoder input dimension (default: --decoder-embed-dim)")
    decoder_output_dim: Optional[int] = option(
        None, "decoder output dimension (default: --decoder-embed-dim)"
    )
    share_decoder_input_output_embed: bool = option(False, "share decoder input and output embeddings")
    no_token_positional_embeddings: bool = option(False, "disable positional embeddings")
    layernorm_embedding: bool = option(False, "add layernorm to embedding")
    no_scale_embedding: bool = option(False, "do not scale embeddings by the root of their dimension")
    adaptive_softmax_cutoff: Optional[str] = option(
        None,
        "comma-separated list of adaptive softmax cutoff points; must be used with the adaptive_loss criterion",
    )
    adaptive_softmax_dropout: float = option(0.0, "dropout for the tail projections of adaptive softmax")
    adaptive_softmax_factor: float = option(
        4.0, "factor by which each tail projection of adaptive softmax is smaller"
    )

    # the task's
    tokens_per_sample: int = II("task.tokens_per_sample")
    max_target_positions: Optional[int] = II("task.max_target_positions")
