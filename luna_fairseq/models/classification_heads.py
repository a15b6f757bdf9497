"""Classification heads with Luna's packed sequence P as input, for masked language models.

RoBERTa's head uses the features of the first token ``<s>`` instead.

Shapes: batch size B, T tokens, width C, and L vectors in P. Masks [B, L] are True at padding of P.
"""

from typing import Any, Dict, Optional, Type

import torch
from torch import Tensor, nn

from fairseq.models.roberta.model import RobertaClassificationHead
from fairseq.modules import LayerNorm, MultiheadAttention
from luna_fairseq.errors import InputError


class PackedClassificationHead(RobertaClassificationHead):
    """RoBERTa's classification head, applied to one vector per sentence that is pooled from P.

    The packed sequence P is a short summary of the sentence. Subclasses implement :meth:`pool`.
    """

    def forward(
        self,
        features: Tensor,
        packed: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        **kwargs: Any,
    ) -> Tensor:
        """Compute logits [B, classes] from token features [B, T, C] and the packed sequence P [B, L, C]."""
        return super().forward(self.pool(features, packed, packed_padding_mask).unsqueeze(1))

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Pool P [B, L, C] into one vector per sentence [B, C], given the token features [B, T, C].

        ``mask`` [B, L] is True at padding of P. It is None if P has no padding.
        """
        raise NotImplementedError


class MaxPoolingHead(PackedClassificationHead):
    """Classification head applied to the element-wise maximum of the vectors of Luna's packed sequence P.

    A linear layer is applied to each vector before the maximum is taken.
    """

    def __init__(self, input_dim: int, *args: Any, **kwargs: Any):
        super().__init__(input_dim, *args, **kwargs)
        self.in_proj = nn.Linear(input_dim, input_dim)

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        packed = self.in_proj(packed)
        if mask is not None:
            packed = packed.masked_fill(mask.unsqueeze(-1), float("-inf"))
        return packed.max(dim=1)[0]


class MeanPoolingHead(PackedClassificationHead):
    """Classification head applied to the mean of the vectors of Luna's packed sequence P, without padding."""

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        return mean_pool(packed, mask)


class AttentionPoolingHead(PackedClassificationHead):
    """Classification head that attends from the first token ``<s>`` to Luna's packed sequence P.

    P is the fixed-length summary of the sentence. The attention output is normalized with a layer norm.
    """

    def __init__(self, input_dim: int, *args: Any, num_heads: int, **kwargs: Any):
        super().__init__(input_dim, *args, **kwargs)
        self.attn = MultiheadAttention(input_dim, num_heads, encoder_decoder_attention=True)
        self.layer_norm = LayerNorm(input_dim)

    def pool(self, features: Tensor, packed: Tensor, mask: Optional[Tensor]) -> Tensor:
        query, packed = features[:, :1].transpose(0, 1), packed.transpose(0, 1)  # [1, B, C], [L, B, C]
        pooled, _ = self.attn(query, packed, packed, key_padding_mask=mask, need_weights=False)
        return self.layer_norm(pooled.squeeze(0))


def classify(model: Any, head: str, features: Tensor, extra: Dict[str, Any]) -> Tensor:
    """Compute logits [B, classes] with the head named ``head``, from features [B, T, C] and ``extra``.

    ``model`` is a masked language model, which returned the features and ``extra``. A model without P, such
    as fairseq's RoBERTa, has only heads that do not read P. Raises InputError if there is no such head.
    """
    if head not in model.classification_heads:
        names = ", ".join(model.classification_heads) or "none"
        raise InputError(f"the model has no classification head {head!r}; its heads: {names}")
    packed, mask = extra.get("packed_features"), extra.get("packed_padding_mask")
    return model.classification_heads[head](features, packed=packed, packed_padding_mask=mask)


def mean_pool(vectors: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Return the mean [B, C] of vectors [B, L, C], such as P, that are not padding (``mask`` [B, L])."""
    if mask is None:
        return vectors.mean(dim=1)
    is_real = (~mask).unsqueeze(-1).type_as(vectors)
    wide = torch.promote_types(vectors.dtype, torch.float32)  # sums over long sequences overflow in float16
    return ((vectors * is_real).sum(dim=1, dtype=wide) / is_real.sum(dim=1, dtype=wide)).type_as(vectors)


# The name of a head in a checkpoint determines its class. Any other name is RoBERTa's head on <s>.
PACKED_HEADS: Dict[str, Type[PackedClassificationHead]] = {
    "pooling_classification_head": MaxPoolingHead,
    "mean_classification_head": MeanPoolingHead,
    "attention_classification_head": AttentionPoolingHead,
}
