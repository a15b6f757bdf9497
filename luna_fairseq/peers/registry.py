"""Every attention by its name, and the options of all of them."""

from dataclasses import dataclass, fields
from typing import Any, Dict, Type

from luna_fairseq.checks.model_options import LEAST
from luna_fairseq.errors import InputError
from luna_fairseq.modules.heads import check_choice
from luna_fairseq.peers.abc import AbcOptions, BoundedMemoryAttention
from luna_fairseq.peers.attention import OPTIONS, PeerAttention
from luna_fairseq.peers.bigbird import BigBirdAttention, BigBirdOptions
from luna_fairseq.peers.conv_linformer import ConvLinformerAttention, ConvLinformerOptions
from luna_fairseq.peers.flare import FlareAttention, FlareOptions
from luna_fairseq.peers.linear import LinearAttention
from luna_fairseq.peers.linformer import LinformerAttention, LinformerOptions
from luna_fairseq.peers.local import LocalAttention, LocalOptions
from luna_fairseq.peers.longformer import LongformerAttention, LongformerOptions
from luna_fairseq.peers.performer import PerformerAttention, PerformerOptions
from luna_fairseq.peers.reformer import ReformerAttention, ReformerOptions
from luna_fairseq.peers.rfa import RandomFeatureAttention, RfaOptions
from luna_fairseq.peers.sinkhorn import SinkhornAttention, SinkhornOptions
from luna_fairseq.peers.softmax import SoftmaxAttention, SoftmaxOptions
from luna_fairseq.peers.sparse import SparseAttention, SparseOptions
from luna_fairseq.peers.synthesizer import SynthesizerAttention, SynthesizerOptions

ATTENTIONS: Dict[str, Type[PeerAttention]] = {
    attention.name: attention
    for attention in (
        SoftmaxAttention,
        LinearAttention,
        PerformerAttention,
        RandomFeatureAttention,
        BoundedMemoryAttention,
        LinformerAttention,
        ConvLinformerAttention,
        LocalAttention,
        SparseAttention,
        LongformerAttention,
        BigBirdAttention,
        ReformerAttention,
        SinkhornAttention,
        SynthesizerAttention,
        FlareAttention,
    )
}


@dataclass
class PeerOptions(
    SoftmaxOptions,
    PerformerOptions,
    RfaOptions,
    AbcOptions,
    LinformerOptions,
    ConvLinformerOptions,
    LocalOptions,
    SparseOptions,
    LongformerOptions,
    BigBirdOptions,
    ReformerOptions,
    SinkhornOptions,
    SynthesizerOptions,
    FlareOptions,
):
    """The options of every attention, flat, each under its attention's name."""


def check_least(name: str, options: Any) -> None:
    """Raise InputError where an option of the attention ``name`` is smaller than it may be."""
    for field in fields(PeerOptions):
        least = field.metadata.get(LEAST)
        if least is not None and field.name.startswith(f"{name}_"):
            value = getattr(options, field.name)
            if value < least:
                option = field.name.replace("_", "-")
                raise InputError(f"--{option} is {value}: it must be {least} or more")


def build_attention(
    name: str, embed_dim: int, num_heads: int, form: str, options: Any, **kwargs: Any
) -> PeerAttention:
    """The attention of that name; arguments as for :class:`PeerAttention`.

    Raises:
        InputError: there is none of that name, it has no such form, or options that it cannot have
    """
    check_choice(OPTIONS[form], name, ATTENTIONS)
    check_least(name, options)
    return ATTENTIONS[name](embed_dim, num_heads, form, options, **kwargs)
