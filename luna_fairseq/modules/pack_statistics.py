"""Two numbers of pack attention that say whether the rows of P have found something to pack."""

from typing import Dict, Optional

from torch import Tensor

from luna_fairseq.modules.heads import ProjectingAttention
from luna_fairseq.modules.sentences import Masks, Sentences


def pack_statistics(
    weights: Tensor, padding_mask: Optional[Tensor] = None, packed_mask: Optional[Tensor] = None
) -> Dict[str, float]:
    """
    Args:
        weights: of pack attention [B, H, L, S], 0 at padding
        padding_mask: [B, S], True at padding
        packed_mask: [B, L], True at rows of P that are left out

    Returns:
        pack_entropy: mean entropy of a row's weights, 0 where each row packs one token, 1 where it packs all
        alike; pack_coverage: share of the tokens at which a row has its largest weight, mean over heads. 1
        and 1 / S, or 0 and the like, say that the rows pack the same.
    """
    B, H, L, S = weights.shape
    weights = weights.float()
    rows = weights.new_ones(B, L) if packed_mask is None else (~packed_mask).float()
    tokens = weights.new_full((B,), float(S)) if padding_mask is None else (~padding_mask).sum(dim=1).float()
    entropy = (
        -(weights * weights.clamp(min=1e-12).log()).sum(dim=-1) / tokens.clamp(min=2).log()[:, None, None]
    )
    covered = weights.new_zeros(B, H, S).scatter_add(2, weights.argmax(dim=-1), rows[:, None].expand(B, H, L))
    return {
        "pack_entropy": ((entropy * rows[:, None]).sum() / (rows.sum() * H)).item(),
        "pack_coverage": (covered.gt(0).sum() / (tokens.sum() * H)).item(),
    }


class PackReportingAttention(ProjectingAttention):
    """An attention that packs, and says for training's log what its rows do."""

    def statistics(
        self,
        query: Tensor,
        packed: Tensor,
        context: Tensor,
        context_padding_mask: Masks = None,
        packed_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
    ) -> Dict[str, float]:
        """Those of :func:`pack_statistics` for the arguments of ``forward``, if it packs, and
        :meth:`own_statistics`, for --tensorboard-logdir."""
        sentences = Sentences.of(context_padding_mask, packed_padding_mask)
        _, weights = self.pack(packed, context, sentences, need_weights=True)
        masks = sentences.padding_mask, sentences.packed_padding_mask
        return {**({} if weights is None else pack_statistics(weights, *masks)), **self.own_statistics()}

    def own_statistics(self) -> Dict[str, float]:
        """Those of what another attention has besides P: none."""
        return {}
