"""Options of an encoder and of a decoder: plain values, whatever library the model is used from."""

from dataclasses import dataclass
from typing import Callable, Optional

from torch import Tensor
from torch.nn import functional as F

LEARNED, SINUSOIDAL, NO_POSITIONS = POSITIONS = ("learned", "sinusoidal", "none")


@dataclass(frozen=True)
class StackOptions:
    """Options that an encoder and a decoder have in common.

    Attributes:
        embed_dim: width C of every position
        ffn_embed_dim: inner width of the feed-forward blocks
        num_layers: number of layers
        num_heads: number of attention heads
        num_pack_heads: number of heads of pack attention (default: None, as many as ``num_heads``)
        projection_length: l, the number of rows of the packed sequence P (default: 32)
        untie_kv: separate projections for keys and values (default: False)
        non_contextual_packed: every layer reads the first P, not the one that the layer before has packed
            (default: False)
        normalize_before: pre-norm layers (default: False)
        activation_fn: activation of the feed-forward blocks (default: ReLU)
        dropout, attention_dropout, activation_dropout, word_dropout: probabilities with which a value, an
            attention weight, a value after the activation and a whole token vector are dropped (default: 0)
        positions: "learned", "sinusoidal" or "none" (default: sinusoidal)
        max_positions: longest sequence of learned positions (default: 1,024)
        scale_embedding: multiply token vectors and P by sqrt(C) (default: True)
        layernorm_embedding: normalise token vectors and P (default: False)
        linear_embedding: a linear map of the token vectors, which fairseq trains with quantisation noise
            (default: False)
    """

    embed_dim: int
    ffn_embed_dim: int
    num_layers: int
    num_heads: int
    num_pack_heads: Optional[int] = None
    projection_length: int = 32
    untie_kv: bool = False
    non_contextual_packed: bool = False
    normalize_before: bool = False
    activation_fn: Callable[[Tensor], Tensor] = F.relu
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    word_dropout: float = 0.0
    positions: str = SINUSOIDAL
    max_positions: int = 1024
    scale_embedding: bool = True
    layernorm_embedding: bool = False
    linear_embedding: bool = False


@dataclass(frozen=True)
class EncoderOptions(StackOptions):
    """Options of an encoder.

    Attributes:
        fix_projection_length: use all rows of P for every sentence. Otherwise a sentence uses at most as many
            rows as it has tokens (default: False)
        sentence_encoder: build an encoder without a decoder. The encoder then normalises the last P, and the
            masked rows of P start as zeros (default: False)
        packed_is_read: True if a head reads the last P. If not, the norm of the last P in a sentence encoder
            has neither gain nor bias (default: True)
        layer_repeats: number of times that the whole stack of layers is applied. With more than 1, a
            post-norm layer also normalises the last P (default: 1)
    """

    fix_projection_length: bool = False
    sentence_encoder: bool = False
    packed_is_read: bool = True
    layer_repeats: int = 1

    @property
    def normalizes_last_packed(self) -> bool:
        """True if the encoder, not its last layer, normalises the last P of a sentence encoder."""
        return self.sentence_encoder and not (self.layer_repeats > 1 and not self.normalize_before)


@dataclass(frozen=True)
class DecoderOptions(StackOptions):
    """Options of a decoder.

    Attributes:
        has_encoder: the decoder reads a source; otherwise it is a language model, and every layer has a P of
            its own (default: True)
        output_dim: width of the output (default: None, ``embed_dim``)
        final_norm: normalise the output of a pre-norm decoder (default: True)
        pack_activation: activation of causal pack attention, "softplus" or "elu" (default: softplus)
        backend: form of causal attention over whole sequences, see :func:`luna_fairseq.ops.causal_luna`
            (default: auto)
    """

    has_encoder: bool = True
    output_dim: Optional[int] = None
    final_norm: bool = True
    pack_activation: str = "softplus"
    backend: str = "auto"
