"""Classification heads that read the last packed sequence P; RoBERTa's own head reads ``<s>``."""

from typing import Any, Dict, Optional, Type

from torch import Tensor, nn

from fairseq.models.roberta.model import RobertaClassificationHead
from fairseq.modules import LayerNorm, MultiheadAttention


class PackedClassificationHead(RobertaClassificationHead):
    """RoBERTa's classification head on a vector that is pooled from P.

    The head consists of dropout, a dense layer, an activation, dropout, and a projection.
    """

    def forward(
        self,
        features: Tensor,
        packed: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        **kwargs: Any,
    ) -> Tensor:
        """Compute the logits of the classes.

        Args:
            features: features X of the tokens [B, T, C]
            packed: last packed sequence P [B, L, C]
            packed_padding_mask: mask of P [B, L], True at masked rows (default: None, no row is masked)
            kwargs: ignored

        Returns:
            logits [B, number of classes]
        """
        return super().forward(self.pool(features, packed, packed_padding_mask).unsqueeze(1))

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Pool the features or P to one vector for each sentence [B, C]; see :meth:`forward`."""
        raise NotImplementedError


class MaxPoolingHead(PackedClassificationHead):
    """Head on the maximum over the rows of P, after a linear map."""

    def __init__(self, input_dim: int, *args: Any, **kwargs: Any):
        super().__init__(input_dim, *args, **kwargs)
        self.in_proj = nn.Linear(input_dim, input_dim)

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Return the maximum over the rows of the mapped P [B, C]."""
        packed = self.in_proj(packed)
        if mask is not None:
            packed = packed.masked_fill(mask.unsqueeze(-1), float("-inf"))
        return packed.max(dim=1)[0]


class MeanPoolingHead(PackedClassificationHead):
    """Head on the mean over the rows of P."""

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Return the mean over the rows of P [B, C]."""
        return mean_of_packed(packed, mask)


class AttentionPoolingHead(PackedClassificationHead):
    """Head on the output of multi-head attention from the first token to the rows of P, with layer norm."""

    def __init__(
        self, input_dim: int, *args: Any, num_heads: int, attention_dropout: float = 0.0, **kwargs: Any
    ):
        super().__init__(input_dim, *args, **kwargs)
        self.attn = MultiheadAttention(
            input_dim, num_heads, dropout=attention_dropout, encoder_decoder_attention=True
        )
        self.layer_norm = LayerNorm(input_dim)

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Attend from the first token to the rows of P, and return the normalised result [B, C]."""
        query, packed = features[:, :1].transpose(0, 1), packed.transpose(0, 1)  # [1, B, C], [L, B, C]
        pooled, _ = self.attn(query, packed, packed, key_padding_mask=mask, need_weights=False)
        return self.layer_norm(pooled.squeeze(0))


def mean_of_packed(packed: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Return the mean over the rows of P that are not masked.

    Args:
        packed: packed sequence P [B, L, C]
        mask: mask of P [B, L], True at masked rows; None if no row is masked

    Returns:
        means [B, C]
    """
    if mask is None:
        return packed.mean(dim=1)
    is_real = (~mask).unsqueeze(-1).type_as(packed)
    return (packed * is_real).sum(dim=1) / is_real.sum(dim=1)


# The name of a head in a checkpoint determines its class. Every other name is RoBERTa's head on <s>.
PACKED_HEADS: Dict[str, Type[PackedClassificationHead]] = {
    "pooling_classification_head": MaxPoolingHead,
    "mean_classification_head": MeanPoolingHead,
    "attention_classification_head": AttentionPoolingHead,
}
