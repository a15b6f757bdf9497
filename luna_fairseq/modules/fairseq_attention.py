"""The attentions inside fairseq: its dropout, its quantisation noise, and its store for what decoding
keeps."""

from typing import Any, Dict, Optional, Tuple, TypeVar

from torch import Tensor, nn

from fairseq.incremental_decoding_utils import with_incremental_state
from fairseq.modules import FairseqDropout, LayerNorm
from fairseq.modules.quant_noise import quant_noise
from luna_fairseq.errors import InputError
from luna_fairseq.modules.anchors import Anchors
from luna_fairseq.modules.luna_attention import LunaAttention, places_of_all
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention, LunaCausalState
from luna_fairseq.modules.pack_figures import pack_figures
from luna_fairseq.modules.softmax_attention import SoftmaxCrossAttention

IncrementalState = Dict[str, Dict[str, Optional[Tensor]]]
Module = TypeVar("Module", bound=nn.Module)


def with_fairseq_parts(
    module: Module, name: str, q_noise: float = 0.0, qn_block_size: int = 8, export: bool = False
) -> Module:
    """``module`` with fairseq's own in the place of torch's parts: dropout that --retain-dropout keeps
    (``name`` is what --retain-dropout-modules calls it), the norm with apex's fused kernel (not to
    ``export``), quantisation noise on linear maps."""
    for part, child in list(module.named_children()):
        if isinstance(child, nn.Dropout):
            setattr(module, part, FairseqDropout(child.p, module_name=name))
        elif isinstance(child, nn.LayerNorm):
            setattr(module, part, LayerNorm(child.normalized_shape, export=export))
        elif isinstance(child, nn.Linear):
            quant_noise(child, q_noise, qn_block_size)
    return module


@with_incremental_state
class KeepsInStore(nn.Module):
    """An attention with fairseq's parts that keeps a named tuple of decoding in fairseq's store.

    Args:
        q_noise, qn_block_size: fairseq's quantisation noise on the projections (default: none)
        args, kwargs: of the attention
    """

    # What --retain-dropout-modules calls it, the store's key, and the type of what is kept.
    plain_name: str
    store_key: str
    kept_type: Any

    def __init__(self, *args: Any, q_noise: float = 0.0, qn_block_size: int = 8, **kwargs: Any):
        super().__init__(*args, **kwargs)
        with_fairseq_parts(self, self.plain_name, q_noise, qn_block_size)

    def kept(self, incremental_state: Optional[IncrementalState]) -> Any:
        """What earlier steps of decoding have kept, or None."""
        saved = self.get_incremental_state(incremental_state, self.store_key)
        return None if saved is None else self.kept_type(**saved)

    def _store(self, incremental_state: Optional[IncrementalState], kept: Any) -> None:
        self.set_incremental_state(incremental_state, self.store_key, kept._asdict())

    def keep_sentences(self, incremental_state: IncrementalState, left: Tensor) -> None:
        """Keep what belongs to the sentences ``left`` [B'], in that order."""
        kept = self.kept(incremental_state)
        if kept is not None:
            self._store(incremental_state, kept.select(left))


class FairseqLunaAttention(KeepsInStore, LunaAttention):
    """Luna attention that keeps the packed context; hypotheses have nothing of their own.

    Args:
        args, kwargs: of :class:`KeepsInStore` and :class:`LunaAttention`
    """

    plain_name = "LunaAttention"
    store_key = "packed_context"

    def forward(
        self,
        query: Tensor,
        packed: Optional[Tensor],
        context: Tensor,
        context_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
        anchors: Optional[Anchors] = None,
        query_place: Optional[Tensor] = None,
        incremental_state: Optional[IncrementalState] = None,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """As :meth:`LunaAttention.forward`. With ``incremental_state`` the context is static: it is packed
        once and kept there, P may be None from then on, and the packed context that is returned is None."""
        if self.diagonal is not None and query_place is None and incremental_state is None:
            query_place = places_of_all(query)
        kept, packed_context = self.kept(incremental_state), None
        if kept is None:
            if packed is None:
                raise InputError(
                    "no packed sequence was given, and no earlier step has kept a packed context"
                )
            if anchors is None:
                anchors = self.find_anchors(context, packed, context_padding_mask, packed_padding_mask)
            packed_context, kept = self.pack_and_keep(
                packed, context, context_padding_mask, need_weights, anchors
            )
            self._store(incremental_state, kept)
        output, weights = self.unpack(query, kept, packed_padding_mask, need_weights, anchors, query_place)
        return output, packed_context, weights

    def tell(
        self,
        query: Tensor,
        packed: Optional[Tensor],
        context: Tensor,
        context_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
        anchors: Optional[Anchors] = None,
        query_place: Optional[Tensor] = None,
        incremental_state: Optional[IncrementalState] = None,
    ) -> Dict[str, float]:
        """Figures of what :meth:`forward` is called with, for --tensorboard-logdir: those of
        :func:`pack_figures`, and gamma of pack and unpack attention and of the diagonal, mean over heads,
        where there are any."""
        if anchors is None:
            anchors = self.find_anchors(context, packed, context_padding_mask, packed_padding_mask)
        _, weights = self.pack(packed, context, context_padding_mask, True, anchors)
        figures = {} if weights is None else pack_figures(weights, context_padding_mask, packed_padding_mask)
        drawn = {"pack": self.pack_anchor, "unpack": self.unpack_anchor, "diagonal": self.diagonal}
        for name, anchor in drawn.items():
            if anchor is not None:
                figures[f"{name}_gamma"] = anchor.strength().mean().item()
        return figures


class FairseqSoftmaxCrossAttention(FairseqLunaAttention, SoftmaxCrossAttention):
    """Softmax cross-attention beside pack attention, which keeps the projected context in fairseq's store.

    Args:
        args, kwargs: of :class:`FairseqLunaAttention` and :class:`SoftmaxCrossAttention`
    """


class FairseqLunaCausalAttention(KeepsInStore, LunaCausalAttention):
    """Luna causal attention that keeps its sums, and the projected P of a sentence.

    Args:
        args, kwargs: of :class:`KeepsInStore` and :class:`LunaCausalAttention`
    """

    plain_name = "LunaCausalAttention"
    store_key = "causal_sums"
    kept_type = LunaCausalState

    def forward(
        self,
        query: Tensor,
        packed: Optional[Tensor],
        key_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[IncrementalState] = None,
    ) -> Tensor:
        """As :meth:`LunaCausalAttention.forward`, and with ``incremental_state`` as
        :meth:`LunaCausalAttention.step`."""
        if incremental_state is None:
            return super().forward(query, packed, key_padding_mask, packed_padding_mask)
        state = self.kept(incremental_state)
        output, state = self.step(query, packed, state, key_padding_mask, packed_padding_mask)
        self._store(incremental_state, state)
        return output

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Give hypothesis i the sums that hypothesis ``new_order[i]`` had. new_order: [N']."""
        state = self.kept(incremental_state)
        if state is not None:
            self._store(incremental_state, state.reorder(new_order))
