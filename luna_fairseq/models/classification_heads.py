"""Classification heads that read the last packed sequence P instead of the first token ``<s>``."""

from typing import Any, Dict, Optional, Type

from torch import Tensor, nn

from fairseq.models.roberta.model import RobertaClassificationHead
from fairseq.modules import LayerNorm, MultiheadAttention


class PackedClassificationHead(RobertaClassificationHead):
    """RoBERTa's classification head, applied to a vector that is pooled from the packed sequence P.

    RoBERTa's head applies dropout, a dense layer, an activation, dropout, and a projection to the logits. It
    documents the arguments. Subclasses differ in :meth:`pool`.
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
            features: features [B, T, C] of the tokens.
            packed: last packed sequence P [B, L, C].
            packed_padding_mask: mask [B, L] of P, True at masked rows (default: None, no row is masked).
            kwargs: ignored.

        Returns:
            Logits [B, number of classes].
        """
        return super().forward(self.pool(features, packed, packed_padding_mask).unsqueeze(1))

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Pool the packed sequence P, or the features, to one vector for each sentence.

        Args:
            features: features [B, T, C] of the tokens.
            packed: last packed sequence P [B, L, C].
            mask: mask [B, L] of P, True at masked rows; None if no row is masked.

        Returns:
            Vectors [B, C].
        """
        raise NotImplementedError


class MaxPoolingHead(PackedClassificationHead):
    """Classification head that reads the packed sequence P of the last encoder layer.

    A linear layer is applied to every row of P, then the maximum over the rows is classified.

    Args:
        input_dim: width of P.
        args, kwargs: further arguments of fairseq's ``RobertaClassificationHead``: the width of its hidden
            layer, the number of classes, the activation function and the dropout probability.

    Example:
        >>> import torch
        >>> sizes = {"input_dim": 8, "inner_dim": 8, "num_classes": 3}
        >>> options = {"activation_fn": "tanh", "pooler_dropout": 0.0}
        >>> head = MaxPoolingHead(**sizes, **options)
        >>> head(torch.ones(2, 5, 8), packed=torch.ones(2, 4, 8)).shape
        torch.Size([2, 3])
    """

    def __init__(self, input_dim: int, *args: Any, **kwargs: Any):
        super().__init__(input_dim, *args, **kwargs)
        self.in_proj = nn.Linear(input_dim, input_dim)

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Apply the linear layer to the packed sequence P, and return the maximum over its rows.

        Args:
            features: ignored.
            packed: last packed sequence P [B, L, C].
            mask: mask [B, L], True at masked rows of P; None if no row is masked.

        Returns:
            Vectors [B, C].
        """
        packed = self.in_proj(packed)
        if mask is not None:
            packed = packed.masked_fill(mask.unsqueeze(-1), float("-inf"))
        return packed.max(dim=1)[0]


class MeanPoolingHead(PackedClassificationHead):
    """Classification head on the mean over the rows of the packed sequence P."""

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Return the mean over the rows of the packed sequence P.

        Args:
            features: ignored.
            packed: last packed sequence P [B, L, C].
            mask: mask [B, L], True at masked rows of P; None if no row is masked.

        Returns:
            Vectors [B, C].
        """
        return mean_of_packed(packed, mask)


class AttentionPoolingHead(PackedClassificationHead):
    """Classification head on attention from the first token to the rows of the packed sequence P.

    Args:
        input_dim: model width C.
        args: further positional arguments of RoBERTa's head.
        num_heads: number of attention heads.
        attention_dropout: dropout probability for attention weights (default: 0).
        kwargs: further keyword arguments of RoBERTa's head.
    """

    def __init__(
        self, input_dim: int, *args: Any, num_heads: int, attention_dropout: float = 0.0, **kwargs: Any
    ):
        super().__init__(input_dim, *args, **kwargs)
        self.attn = MultiheadAttention(
            input_dim, num_heads, dropout=attention_dropout, encoder_decoder_attention=True
        )
        self.layer_norm = LayerNorm(input_dim)

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Attend from the first token to the rows of the packed sequence P, and apply layer norm.

        Args:
            features: features [B, T, C] of the tokens.
            packed: last packed sequence P [B, L, C].
            mask: mask [B, L], True at masked rows of P; None if no row is masked.

        Returns:
            Vectors [B, C].
        """
        query, packed = features[:, :1].transpose(0, 1), packed.transpose(0, 1)  # [1, B, C], [L, B, C]
        pooled, _ = self.attn(query, packed, packed, key_padding_mask=mask, need_weights=False)
        return self.layer_norm(pooled.squeeze(0))


def mean_of_packed(packed: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Return the mean over the rows of the packed sequence P that are not masked.

    Args:
        packed: packed sequence P [B, L, C].
        mask: mask [B, L] of P, True at masked rows; None if no row is masked.

    Returns:
        Means [B, C].

    Example:
        >>> import torch
        >>> packed = torch.tensor([[[1.0], [3.0], [8.0]]])
        >>> mean_of_packed(packed, torch.tensor([[False, False, True]]))
        tensor([[2.]])
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
