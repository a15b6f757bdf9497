"""Classification heads of masked language models that read Luna's packed sequence P.

RoBERTa's head reads the features of the first token ``<s>`` instead. The packed sequence P is the extra
sequence of fixed length L that every Luna layer updates.
"""

from typing import Any, Dict, Optional, Type

from torch import Tensor, nn

from fairseq.models.roberta.model import RobertaClassificationHead
from fairseq.modules import LayerNorm, MultiheadAttention


class PackedClassificationHead(RobertaClassificationHead):
    """Base class of classification heads that pool Luna's packed sequence P to one vector.

    RoBERTa's classification head is then applied to this vector: dropout, linear layer, activation, dropout,
    and a projection to the logits. Subclasses implement :meth:`pool`. The constructor has the arguments of
    fairseq's ``RobertaClassificationHead``.
    """

    def forward(
        self,
        features: Tensor,
        packed: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        **kwargs: Any,
    ) -> Tensor:
        """Compute the logits of the classes.

        Shapes: batch size B, T tokens, width C, and L vectors in the packed sequence P.

        Args:
            features: features [B, T, C] of the tokens.
            packed: packed sequence P [B, L, C] after the last layer.
            packed_padding_mask: mask [B, L], True at padding in P (default: None, no padding).
            kwargs: ignored.

        Returns:
            Logits [B, number of classes].
        """
        return super().forward(self.pool(features, packed, packed_padding_mask).unsqueeze(1))

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Compute one vector for each sentence, which RoBERTa's head then classifies.

        Shapes: batch size B, T tokens, width C, and L vectors in the packed sequence P.

        Args:
            features: features [B, T, C] of the tokens.
            packed: packed sequence P [B, L, C] after the last layer.
            mask: mask [B, L], True at padding in P; None without padding.

        Returns:
            Pooled vectors [B, C].
        """
        raise NotImplementedError


class MaxPoolingHead(PackedClassificationHead):
    """Classification head on the element-wise maximum of Luna's packed sequence P.

    A linear layer is applied to each vector of P before the maximum is taken.

    Args:
        input_dim: width C of P.
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
        """Apply a linear layer to the packed sequence P, and return the element-wise maximum.

        Args:
            features: ignored.
            packed: packed sequence P [B, L, C]: batch size B, L vectors of width C.
            mask: mask [B, L], True at padding in P; None without padding.

        Returns:
            Maximum [B, C] over the L vectors.
        """
        packed = self.in_proj(packed)
        if mask is not None:
            packed = packed.masked_fill(mask.unsqueeze(-1), float("-inf"))
        return packed.max(dim=1)[0]


class MeanPoolingHead(PackedClassificationHead):
    """Classification head on the mean of Luna's packed sequence P.

    The constructor has the arguments of fairseq's ``RobertaClassificationHead``.
    """

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Return the mean of the packed sequence P.

        Args:
            features: ignored.
            packed: packed sequence P [B, L, C]: batch size B, L vectors of width C.
            mask: mask [B, L], True at padding in P; None without padding.

        Returns:
            Mean [B, C] over the vectors that are not padding.
        """
        return mean_pool(packed, mask)


class AttentionPoolingHead(PackedClassificationHead):
    """Classification head that pools Luna's packed sequence P by attention from the token ``<s>``.

    Args:
        input_dim: model width C.
        args: further positional arguments of fairseq's ``RobertaClassificationHead``.
        num_heads: number of attention heads.
        attention_dropout: dropout probability of the attention weights (default: 0).
        kwargs: further keyword arguments of fairseq's ``RobertaClassificationHead``.
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
            features: features [B, T, C] of the tokens. The first token is the query.
            packed: packed sequence P [B, L, C], the keys and values.
            mask: mask [B, L], True at padding in P; None without padding.

        Returns:
            Attention outputs [B, C].
        """
        query, packed = features[:, :1].transpose(0, 1), packed.transpose(0, 1)  # [1, B, C], [L, B, C]
        pooled, _ = self.attn(query, packed, packed, key_padding_mask=mask, need_weights=False)
        return self.layer_norm(pooled.squeeze(0))


def mean_pool(packed: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Return the mean of Luna's packed sequence P, without padding.

    Args:
        packed: packed sequence P [B, L, C]: batch size B, L vectors of width C.
        mask: mask [B, L], True at padding; None without padding.

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


# The name of a head in a checkpoint determines its class. Every other name is RoBERTa's head on <s>.
PACKED_HEADS: Dict[str, Type[PackedClassificationHead]] = {
    "pooling_classification_head": MaxPoolingHead,
    "mean_classification_head": MeanPoolingHead,
    "attention_classification_head": AttentionPoolingHead,
}
