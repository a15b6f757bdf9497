"""Classification heads that read the last packed sequence P; the one on ``<s>`` is RoBERTa's own."""

from typing import Any, Dict, Optional, Type

from torch import Tensor, nn

from fairseq.models.roberta.model import RobertaClassificationHead
from fairseq.modules import LayerNorm, MultiheadAttention


class PackedClassificationHead(RobertaClassificationHead):
    """RoBERTa's head (dropout, dense, tanh, dropout, projection) on one vector for each sentence, pooled from
    P."""

    def forward(
        self,
        features: Tensor,
        packed: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        **kwargs: Any,
    ) -> Tensor:
        """
        Args:
            features: X [B, T, C]
            packed: the last P [B, L, C]
            packed_padding_mask: [B, L], True at rows of P that are left out; None where no row is

        Returns:
            logits [B, number of classes]
        """
        return super().forward(self.pool(features, packed, packed_padding_mask).unsqueeze(1))

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        """[B, C] from the arguments of :meth:`forward`."""
        raise NotImplementedError


class MaxPoolingHead(PackedClassificationHead):
    """Largest value over P's rows, after a linear map."""

    def __init__(self, input_dim: int, *args: Any, **kwargs: Any):
        super().__init__(input_dim, *args, **kwargs)
        self.in_proj = nn.Linear(input_dim, input_dim)

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        packed = self.in_proj(packed)
        if mask is not None:
            packed = packed.masked_fill(mask.unsqueeze(-1), float("-inf"))
        return packed.max(dim=1)[0]


class MeanPoolingHead(PackedClassificationHead):
    """Mean of P's rows."""

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        return mean_of_packed(packed, mask)


class AttentionPoolingHead(PackedClassificationHead):
    """Ordinary attention of the first token to P's rows, normalised."""

    def __init__(
        self, input_dim: int, *args: Any, num_heads: int, attention_dropout: float = 0.0, **kwargs: Any
    ):
        super().__init__(input_dim, *args, **kwargs)
        self.attn = MultiheadAttention(
            input_dim, num_heads, dropout=attention_dropout, encoder_decoder_attention=True
        )
        self.layer_norm = LayerNorm(input_dim)

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        query, packed = features[:, :1].transpose(0, 1), packed.transpose(0, 1)  # [1, B, C], [L, B, C]
        pooled, _ = self.attn(query, packed, packed, key_padding_mask=mask, need_weights=False)
        return self.layer_norm(pooled.squeeze(0))


def mean_of_packed(packed: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Mean over the rows of P [B, L, C] that ``mask`` [B, L] does not leave out. Returns [B, C]."""
    if mask is None:
        return packed.mean(dim=1)
    kept = (~mask).unsqueeze(-1).type_as(packed)
    return (packed * kept).sum(dim=1) / kept.sum(dim=1)


# A head's kind follows from its name; every other name is RoBERTa's head on <s>. Names are a file format.
PACKED_HEADS: Dict[str, Type[PackedClassificationHead]] = {
    "pooling_classification_head": MaxPoolingHead,
    "mean_classification_head": MeanPoolingHead,
    "attention_classification_head": AttentionPoolingHead,
}
