"""Classification heads of masked language models that use Luna's packed sequence P as input.

RoBERTa's head uses the features of the first token ``<s>`` instead. The packed sequence P is an extra
sequence of fixed length L, updated by every Luna layer.
"""

from typing import Any, Dict, Optional, Type

from torch import Tensor, nn

from fairseq.models.roberta.model import RobertaClassificationHead
from fairseq.modules import LayerNorm, MultiheadAttention


class PackedClassificationHead(RobertaClassificationHead):
    """Base class of classification heads that pool Luna's packed sequence P into one vector.

    RoBERTa's classification head is then applied to this vector: dropout, linear layer, activation, dropout,
    and a projection to the logits. Subclasses implement :meth:`pool`. The constructor takes the same
    arguments as fairseq's ``RobertaClassificationHead``.
    """

    def forward(
        self,
        features: Tensor,
        packed: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        **kwargs: Any,
    ) -> Tensor:
        """Compute the class logits.

        Shapes: batch size B, T tokens, width C, and L vectors in the packed sequence P.

        Args:
            features: token features [B, T, C].
            packed: packed sequence P [B, L, C] after the last layer.
            packed_padding_mask: padding mask [B, L] of P, True at padding (default: None, no padding).
            kwargs: ignored.

        Returns:
            Logits [B, number of classes].
        """
        return super().forward(self.pool(features, packed, packed_padding_mask).unsqueeze(1))

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Compute one vector per sentence, which RoBERTa's head then classifies.

        Shapes: batch size B, T tokens, width C, and L vectors in the packed sequence P.

        Args:
            features: token features [B, T, C].
            packed: packed sequence P [B, L, C] after the last layer.
            mask: padding mask [B, L] of P, True at padding; None if there is no padding.

        Returns:
            Pooled vectors [B, C].
        """
        raise NotImplementedError


class MaxPoolingHead(PackedClassificationHead):
    """Classification head that uses the element-wise maximum of Luna's packed sequence P.

    A linear layer is applied to each vector of P before taking the maximum.

    Args:
        input_dim: width C of P.
        args, kwargs: remaining arguments of fairseq's ``RobertaClassificationHead``: the hidden width, the
            number of classes, the activation function and the dropout probability.

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
        """Apply a linear layer to the packed sequence P, and return the element-wise maximum.

        Args:
            features: ignored.
            packed: packed sequence P [B, L, C]: batch size B, L vectors of width C.
            mask: padding mask [B, L] of P, True at padding; None if there is no padding.

        Returns:
            Maximum [B, C] over the L vectors.
        """
        packed = self.in_proj(packed)
        if mask is not None:
            packed = packed.masked_fill(mask.unsqueeze(-1), float("-inf"))
        return packed.max(dim=1)[0]


class MeanPoolingHead(PackedClassificationHead):
    """Classification head that uses the mean of Luna's packed sequence P.

    The constructor takes the same arguments as fairseq's ``RobertaClassificationHead``.
    """

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Return the mean of the packed sequence P.

        Args:
            features: ignored.
            packed: packed sequence P [B, L, C]: batch size B, L vectors of width C.
            mask: padding mask [B, L] of P, True at padding; None if there is no padding.

        Returns:
            Mean [B, C] over the vectors that are not padding.
        """
        return mean_pool(packed, mask)


class AttentionPoolingHead(PackedClassificationHead):
    """Classification head that pools Luna's packed sequence P by attention from the token ``<s>``.

    Args:
        input_dim: model width C.
        args: remaining positional arguments of fairseq's ``RobertaClassificationHead``.
        num_heads: number of attention heads.
        attention_dropout: dropout probability of the attention weights (default: 0).
        kwargs: remaining keyword arguments of fairseq's ``RobertaClassificationHead``.
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
        """Attend from the first token to the packed sequence P, and apply layer norm.

        Shapes: batch size B, T tokens, width C, and L vectors in P.

        Args:
            features: token features [B, T, C]. The first token is the query.
            packed: packed sequence P [B, L, C], used as keys and values.
            mask: padding mask [B, L] of P, True at padding; None if there is no padding.

        Returns:
            Attention outputs [B, C].
        """
        query, packed = features[:, :1].transpose(0, 1), packed.transpose(0, 1)  # [1, B, C], [L, B, C]
        pooled, _ = self.attn(query, packed, packed, key_padding_mask=mask, need_weights=False)
        return self.layer_norm(pooled.squeeze(0))


def mean_pool(packed: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Return the mean of Luna's packed sequence P, ignoring padding.

    Args:
        packed: packed sequence P [B, L, C]: batch size B, L vectors of width C.
        mask: padding mask [B, L], True at padding; None if there is no padding.

    Returns:
        Mean [B, C] over the vectors that are not padding.

    Example:
        >>> import torch
        >>> packed = torch.tensor([[[1.0], [3.0], [8.0]]])
        >>> mean_pool(packed, torch.tensor([[False, False, True]]))
        tensor([[2.]])
    """
    if mask is None:
        return packed.mean(dim=1)
    is_real = (~mask).unsqueeze(-1).type_as(packed)
    return (packed * is_real).sum(dim=1) / is_real.sum(dim=1)


# The name of a head in a checkpoint determines its class. Any other name is RoBERTa's head on <s>.
PACKED_HEADS: Dict[str, Type[PackedClassificationHead]] = {
    "pooling_classification_head": MaxPoolingHead,
    "mean_classification_head": MeanPoolingHead,
    "attention_classification_head": AttentionPoolingHead,
}
