"""The peers' attentions, and implementations of them that other people have published for PyTorch."""

from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.peers import PeerOptions
from luna_fairseq.peers.attention import BIDIRECTIONAL, CAUSAL, PeerAttention

BLOCK = 64  # of windows, blocks and buckets
Parts = Sequence[Tensor]


class Side(NamedTuple):
    """One of the two: what computes the output, and what wants gradients."""

    compute: Callable[[], Tensor]
    leaves: List[Tensor]


def on_heads(module: PeerAttention, x: Tensor, parts: Parts) -> Side:
    """Our attention of projected heads."""
    return Side(partial(module.attend, *parts, padding=None), list(parts))


def whole(module: PeerAttention, x: Tensor, parts: Parts) -> Side:
    """Our attention with its projections."""
    return Side(lambda: module(x)[0], [x, *module.parameters()])


def projected(module: PeerAttention, x: Tensor, parts: Parts) -> Side:
    """Our attention with all projections but the last."""
    leaves = [p for name, p in module.named_parameters() if not name.startswith("out_proj")]
    return Side(lambda: module.attend(*module.project(x), padding=None), [x, *leaves])


@dataclass(frozen=True)
class Pair:
    """An attention of ours, and another's.

    Attributes:
        attention, form: ours
        package: theirs, as pip calls it
        module: theirs, as Python does
        theirs: makes their side of our module, a sequence [T, B, C] and its heads [B, H, T, K]
        options: of ours, for a length
        ours: makes our side of the same
        equal: both compute the same function
    """

    attention: str
    package: str
    module: str
    theirs: Callable[[PeerAttention, Tensor, Parts], Side]
    form: str = BIDIRECTIONAL
    options: Callable[[int], Dict[str, Any]] = lambda T: {}
    ours: Callable[[PeerAttention, Tensor, Parts], Side] = on_heads
    equal: bool = True


def performer(module: PeerAttention, x: Tensor, parts: Parts) -> Side:
    """performer-pytorch with our features."""
    from performer_pytorch import performer_pytorch as package

    options = {"projection_matrix": module.features.values, "eps": 0.0}

    def compute() -> Tensor:
        q, k = (package.softmax_kernel(part, is_query=part is parts[0], **options) for part in parts[:2])
        if module.form == CAUSAL:
            return package.causal_linear_attention_noncuda(q, k, parts[2], eps=0.0)
        return package.linear_attention(q, k, parts[2])

    return Side(compute, list(parts))


def linear(module: PeerAttention, x: Tensor, parts: Parts) -> Side:
    """performer-pytorch's linear attention with elu(x) + 1."""
    from performer_pytorch import performer_pytorch as package

    def compute() -> Tensor:
        q, k = (F.elu(part) + 1 for part in parts[:2])
        return package.linear_attention(q, k, parts[2])

    return Side(compute, list(parts))


def summed(module: PeerAttention, x: Tensor, parts: Parts) -> Side:
    """performer-pytorch's causal attention with elu(x) + 1: the outer products of all positions, summed over
    time."""
    from performer_pytorch import performer_pytorch as package

    def compute() -> Tensor:
        q, k = (F.elu(part) + 1 for part in parts[:2])
        # Its chunk_size is how many chunks there are: one, all positions.
        return package.causal_linear_attention_noncuda(q, k, parts[2], chunk_size=1, eps=0.0)

    return Side(compute, list(parts))


def causal_linear(module: PeerAttention, x: Tensor, parts: Parts) -> Side:
    """flash-linear-attention's chunkwise form in plain PyTorch; its kernels are for GPUs."""
    from fla.ops.linear_attn.naive import naive_chunk_linear_attn

    def compute() -> Tensor:
        q, k = ((F.elu(part) + 1).transpose(1, 2) for part in parts[:2])
        output = naive_chunk_linear_attn(q, k, parts[2].transpose(1, 2), scale=1.0, normalize=True)
        return output.transpose(1, 2)

    return Side(compute, list(parts))


def local(module: PeerAttention, x: Tensor, parts: Parts) -> Side:
    """local-attention with our window."""
    from local_attention.local_attention import LocalAttention

    theirs = LocalAttention(
        window_size=BLOCK, causal=module.form == CAUSAL, exact_windowsize=True, use_rotary_pos_emb=False
    )
    return Side(lambda: theirs(*parts), list(parts))


def reformer(module: PeerAttention, x: Tensor, parts: Parts) -> Side:
    """reformer-pytorch's LSH attention with as many buckets and rounds; its buckets are its own."""
    from reformer_pytorch.reformer_pytorch import LSHAttention

    theirs = LSHAttention(bucket_size=BLOCK, n_hashes=2, causal=module.form == CAUSAL)
    qk, v = parts

    def compute() -> Tensor:
        return theirs(qk.flatten(0, 1), v.flatten(0, 1))[0].unflatten(0, qk.shape[:2])

    return Side(compute, list(parts))


def linformer(module: PeerAttention, x: Tensor, parts: Parts) -> Side:
    """linformer's self-attention, projections included; it has no biases."""
    from linformer.linformer import LinformerSelfAttention

    C, k = module.embed_dim, PeerOptions().linformer_k
    return of_module(LinformerSelfAttention(C, module.max_positions, k=k, heads=module.num_heads), x)


def longformer(module: PeerAttention, x: Tensor, parts: Parts) -> Side:
    """transformers' Longformer, its last projection left out, with our weights."""
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = Namespace(
        hidden_size=module.embed_dim,
        num_attention_heads=module.num_heads,
        attention_window=[PeerOptions().longformer_window],
        attention_probs_dropout_prob=0.0,
    )
    theirs = LongformerSelfAttention(config, layer_id=0).to(x.device)
    for name, own in (("query", "q"), ("key", "k"), ("value", "v")):
        for suffix, prefix in (("", ""), ("_global", "global_")):
            state = getattr(module, f"{prefix}{own}_proj").state_dict()
            getattr(theirs, f"{name}{suffix}").load_state_dict(state)
    mask = torch.zeros(x.size(1), x.size(0), device=x.device)
    mask[:, : PeerOptions().longformer_global_tokens] = 10000.0
    flags = {"is_index_masked": mask < 0, "is_index_global_attn": mask > 0, "is_global_attn": True}

    def compute() -> Tensor:
        output = theirs(x.transpose(0, 1), attention_mask=mask, **flags)[0]
        return output.unflatten(2, (module.num_heads, -1)).transpose(1, 2)

    return Side(compute, [x, *theirs.parameters()])


def bigbird(module: PeerAttention, x: Tensor, parts: Parts) -> Side:
    """transformers' BigBird, its last projection left out; its random blocks are its own."""
    from transformers.models.big_bird import modeling_big_bird as package

    config = package.BigBirdConfig(
        hidden_size=module.embed_dim,
        num_attention_heads=module.num_heads,
        block_size=BLOCK,
        max_position_embeddings=x.size(0),
        attention_probs_dropout_prob=0.0,
    )
    theirs = package.BigBirdBlockSparseAttention(config, seed=0).to(x.device)
    blocked, band, of_from, of_to = package.BigBirdModel.create_masks_for_block_sparse_attn(
        torch.ones(x.size(1), x.size(0), device=x.device), BLOCK
    )
    masks = (band, of_from, of_to, blocked, blocked)
    return Side(lambda: theirs(x.transpose(0, 1), *masks)[0], [x, *theirs.parameters()])


def sinkhorn(module: PeerAttention, x: Tensor, parts: Parts) -> Side:
    """sinkhorn-transformer's self-attention, projections included, sorted by its network."""
    from sinkhorn_transformer.sinkhorn_transformer import SinkhornSelfAttention

    return of_module(SinkhornSelfAttention(module.embed_dim, BLOCK, x.size(0), heads=module.num_heads), x)


def of_module(theirs: nn.Module, x: Tensor) -> Side:
    """A module that is called with a sequence, the sentences first."""
    theirs.to(x.device)
    return Side(lambda: theirs(x.transpose(0, 1)).transpose(0, 1), [x, *theirs.parameters()])


def buckets(T: int) -> Dict[str, Any]:
    """As many buckets as reformer-pytorch has, of as many positions."""
    return {"reformer_hashes": 2, "reformer_buckets": T // BLOCK, "reformer_chunk": BLOCK}


_PERFORMER = ("performer-pytorch", "performer_pytorch")
_FLA, _HUGGING_FACE = ("flash-linear-attention", "fla"), ("transformers", "transformers")
_LOCAL, _REFORMER = ("local-attention", "local_attention"), ("reformer-pytorch", "reformer_pytorch")
PAIRS: Dict[str, Pair] = {
    "linear": Pair("linear", *_PERFORMER, linear),
    "linear, causal, summed": Pair("linear", *_PERFORMER, summed, CAUSAL),
    "linear, causal": Pair("linear", *_FLA, causal_linear, CAUSAL),
    "performer": Pair("performer", *_PERFORMER, performer),
    "performer, causal": Pair("performer", *_PERFORMER, performer, CAUSAL),
    "local": Pair("local", *_LOCAL, local),
    "local, causal": Pair("local", *_LOCAL, local, CAUSAL),
    "reformer": Pair("reformer", *_REFORMER, reformer, options=buckets, equal=False),
    "reformer, causal": Pair("reformer", *_REFORMER, reformer, CAUSAL, options=buckets, equal=False),
    "linformer": Pair("linformer", "linformer", "linformer", linformer, ours=whole, equal=False),
    "longformer": Pair("longformer", *_HUGGING_FACE, longformer, ours=projected),
    "bigbird": Pair("bigbird", *_HUGGING_FACE, bigbird, ours=projected, equal=False),
    "sinkhorn": Pair(
        "sinkhorn", "sinkhorn-transformer", "sinkhorn_transformer", sinkhorn, ours=whole, equal=False
    ),
}
